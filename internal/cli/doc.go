// Package cli is the command line of safedrain: cobra commands that turn strings into typed options, the calls of the
// engine, and the printers that turn its values into text. It alone imports cli-runtime; kubectl's packages are what its tests compare with.
//
// Each command is a Flags type whose fields are bound to the flag set, a method that turns them into Options, and a run.
// Results go to stdout; progress, warnings and errors go to stderr.
package cli
