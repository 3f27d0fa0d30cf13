"""Calls that follow a fixed graph: whatever a stack of this program shows must be a path of it. `python_graph.py SECONDS
[THREADS]` prints the edges, `CALLER CALLEE` a line. Threads take turns, anywhere in their code.

Short functions, so that samples meet calls and returns; generators, coroutines, methods, callbacks out of C; and functions
that are compiled, run once and thrown away, so that memory is used again for other ones."""

import _thread
import sys
import time

EDGES = {("<module>", "main")}
FUNCTIONS = 24


def edge(caller, callee):
    EDGES.add((caller, callee))


def make(number):
    text = f"def f{number}(n):\n    if n < 1: return leaf(n)\n"
    for child in (2 * number + 1, 2 * number + 2, 3 * number + 3):
        if child < FUNCTIONS:
            text += f"    f{child}(n // 2)\n"
            edge(f"f{number}", f"f{child}")
    exec(text + "    return leaf(n)", globals())
    edge(f"f{number}", "leaf")


def leaf(n):
    return n + 1


def numbers(n):
    for number in range(n):
        yield leaf(number)


async def inner(n):
    return leaf(n)


async def outer(n):
    return await inner(n)


class Thing:
    def __init__(self, n):
        self.n = leaf(n)

    def __lt__(self, other):
        return less(self.n, other.n)


def less(a, b):
    return a < b


def temporary(n):
    scope = {"leaf": leaf}
    exec(f"def short_lived_{n}():\n    return leaf({n})\nshort_lived_{n}()", scope)


def drive(coroutine):
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value


def main(seconds):
    end = time.process_time() + seconds
    n = 0
    while time.process_time() < end:
        n += 1
        f0(6)
        for _ in numbers(8):
            pass
        drive(outer(n))
        sorted([Thing(3), Thing(2), Thing(1)])
        list(map(leaf, range(8)))
        temporary(n % 7)


def in_thread(seconds, end):
    main(seconds)
    end.release()


for number in range(FUNCTIONS):
    make(number)
# A class is a call of its body.
for callee in ("make", "edge", "Thing"):
    edge("<module>", callee)
edge("make", "edge")
edge("make", "<module>")
for callee in ("f0", "numbers", "outer", "drive", "Thing.__init__", "Thing.__lt__", "leaf", "temporary"):
    edge("main", callee)
edge("numbers", "leaf")
edge("drive", "outer")
edge("outer", "inner")
edge("inner", "leaf")
edge("Thing.__init__", "leaf")
edge("Thing.__lt__", "less")
edge("temporary", "<module>")
for n in range(7):
    edge("<module>", f"short_lived_{n}")
    edge(f"short_lived_{n}", "leaf")
# What is printed is all of it: `print` runs no Python of this file.
edge("in_thread", "main")
sys.setswitchinterval(1e-4)
ends = [_thread.allocate_lock() for _ in sys.argv[2:] for _ in range(int(sys.argv[2]))]
for end in ends:
    end.acquire()
    _thread.start_new_thread(in_thread, (float(sys.argv[1]), end))
main(float(sys.argv[1]))
for end in ends:
    end.acquire()
for caller, callee in sorted(EDGES):
    print(caller, callee)
