//go:build !linux

package spawn

import (
	"errors"
	"os"
	"syscall"
)

func attributes(bool) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// Bound is of no use here: there are no network namespaces to start anything in.
func Bound() *syscall.SysProcAttr { return nil }

func setns(*os.File) error { return errors.New("only Linux has network namespaces") }
