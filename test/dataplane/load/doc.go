// Package load sends requests to balancers at a fixed rate and accounts for every one of them.
//
// The load is open: each request has its moment by the schedule, is sent then whatever became of those before, and its
// latency counts from that moment. Every scheduled request ends in exactly one [Class]. Beside the requests that each
// open a connection of their own there are connections that are kept, with a request a second each.
//
// [Run] writes a JSON line for each target and second, one for each failure and one summary for each target; [Decode]
// reads them.
package load
