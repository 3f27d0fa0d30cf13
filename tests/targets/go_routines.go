// A Go program with cgo: small stacks that move, signals of its own (SIGURG preempts), panics, a child, calls of C.
package main

// static int twice(int x) { return 2 * x; }
import "C"

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
)

//go:noinline
func leaf(n uint64) uint64 {
	for i := 0; i < 200000; i++ {
		n = n*6364136223846793005 + 1442695040888963407
	}
	return n
}

//go:noinline
func work(n uint64) uint64 { return leaf(n) ^ uint64(C.twice(C.int(n&7))) }

func recovered(n uint64) (result uint64) {
	defer func() {
		if recover() != nil {
			result = work(n)
		}
	}()
	panic("expected")
}

func main() {
	var group sync.WaitGroup
	sums := make([]uint64, 8)
	for g := range sums {
		group.Add(1)
		go func(g int) {
			defer group.Done()
			for i := 0; i < 300; i++ {
				sums[g] += recovered(uint64(g))
				_ = make([]byte, 10000)
			}
		}(g)
	}
	group.Wait()
	runtime.GC()
	child, err := exec.Command("echo", "child").Output()
	fmt.Print(sums, string(child), err, "\n")
	os.Exit(43)
}
