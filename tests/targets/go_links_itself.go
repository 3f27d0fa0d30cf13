// A cgo program linked by Go's own linker (only a package of the standard library contains C): of the runtime's C part
// nothing but crosscall2 is exported. Its threads come and go while the runtime preempts goroutines by signals. Prints
// "ok".
package main

import (
	"fmt"
	"os/user"
	"runtime"
)

//go:noinline
func burn(n uint64) uint64 {
	for i := 0; i < 300000; i++ {
		n = n*6364136223846793005 + 1442695040888963407
	}
	return n
}

func main() {
	if _, err := user.Current(); err != nil {
		panic(err)
	}
	sums := make(chan uint64)
	for round := 0; round < 60; round++ {
		for i := 0; i < 4; i++ {
			go func(i uint64) {
				// Locked to the end: its thread ends with it.
				runtime.LockOSThread()
				sums <- burn(i)
			}(uint64(i))
		}
		runtime.GC()
		for i := 0; i < 4; i++ {
			<-sums
		}
	}
	fmt.Println("ok")
}
