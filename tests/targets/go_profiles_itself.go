// A Go program that takes a CPU profile of itself, by SIGPROF as Go does, and says whether it has as many samples as it must.
package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"runtime/pprof"
	"syscall"
	"time"
)

//go:noinline
func spin(n uint64) uint64 {
	for i := 0; i < 100000; i++ {
		n = n*6364136223846793005 + 1442695040888963407
	}
	return n
}

// The values of a sample, field 2 of each message in field 2 of a profile: the first is a count.
func count(profile []byte) (total uint64) {
	fields(profile, func(number int, _ uint64, sample []byte) {
		if number == 2 {
			first := true
			fields(sample, func(number int, value uint64, packed []byte) {
				if number == 2 && first {
					first = false
					if packed != nil {
						value, _ = varint(packed)
					}
					total += value
				}
			})
		}
	})
	return total
}

func fields(message []byte, each func(int, uint64, []byte)) {
	for len(message) > 0 {
		key, n := varint(message)
		message = message[n:]
		value, n := varint(message)
		message = message[n:]
		if key&7 == 2 {
			each(int(key>>3), 0, message[:value])
			message = message[value:]
		} else {
			each(int(key>>3), value, nil)
		}
	}
}

func varint(bytes []byte) (value uint64, n int) {
	for shift := 0; ; shift += 7 {
		value |= uint64(bytes[n]&0x7f) << shift
		n++
		if bytes[n-1] < 0x80 {
			return value, n
		}
	}
}

// CPU time of the process: on a busy machine the clock says little.
func used() time.Duration {
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func main() {
	var profile bytes.Buffer
	pprof.StartCPUProfile(&profile)
	x := uint64(1)
	for used() < time.Second {
		x = spin(x)
	}
	pprof.StopCPUProfile()
	unpacked, err := gzip.NewReader(&profile)
	if err != nil {
		panic(err)
	}
	all, err := io.ReadAll(unpacked)
	if err != nil {
		panic(err)
	}
	// 100 a second.
	fmt.Println("enough:", count(all) > 60, "too many:", count(all) > 130)
}
