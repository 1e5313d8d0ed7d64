// Package bench measures the built safedrain beside kubectl drain, or beside the bare requests that it needs, in the same
// run and on the same API server. A benchmark whose number is worse than what is promised fails. It holds tests only.
package bench
