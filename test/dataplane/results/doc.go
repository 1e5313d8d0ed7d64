// Package results keeps what experiments measured: a record for each run, tables and a plot made from the records.
//
// The records are lines of JSON in one file of a directory; everything else there is made from them by [Write] and never
// edited by hand.
package results
