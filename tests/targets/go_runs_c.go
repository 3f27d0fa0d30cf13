// Built together with go_runs.go: calls into C in each round.
package main

// static int twice(int x) { return 2 * x; }
import "C"

func init() {
	twice = func(x uint64) uint64 { return uint64(C.twice(C.int(x))) }
}
