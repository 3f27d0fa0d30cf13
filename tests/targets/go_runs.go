// A Go program to attach to: goroutines that compute and allocate, with everything that its runtime does on stacks of
// its own. Prints "ready", and "ok" after a number of rounds.
package main

import (
	"fmt"
	"os"
	"strconv"
)

//go:noinline
func leaf(n uint64) uint64 {
	for i := 0; i < 200000; i++ {
		n = n*6364136223846793005 + 1442695040888963407
	}
	return n
}

//go:noinline
func fill(n uint64) []byte {
	b := make([]byte, 4096+n%64)
	b[0] = byte(n)
	return b
}

var sink []byte

// Replaced by go_runs_c.go.
var twice = func(x uint64) uint64 { return 2 * x }

func worker(sums chan uint64, rounds int) {
	var x uint64 = 1
	for i := 0; i < rounds; i++ {
		x = leaf(x) ^ twice(x&7)
		for k := 0; k < 200; k++ {
			sink = fill(x)
		}
	}
	sums <- x
}

func main() {
	rounds, _ := strconv.Atoi(os.Args[1])
	fmt.Println("ready")
	sums := make(chan uint64)
	for i := 0; i < 3; i++ {
		go worker(sums, rounds)
	}
	for i := 0; i < 3; i++ {
		<-sums
	}
	fmt.Println("ok")
}
