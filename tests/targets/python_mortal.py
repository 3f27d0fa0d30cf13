"""Whatever a stack of this program refers to is soon unmapped: `python_mortal.py SECONDS` calls functions whose code is so large
that it goes back to the kernel as soon as it is freed, as the last reference to it is given up by the call itself; callbacks
of weak references to such code; generators, and recursion to and fro over the ends of the chunks that frames lie in. It
prints the edges of its calls, `CALLER CALLEE` a line."""

import ctypes
import sys
import threading
import time
import weakref

EDGES = """<module> main
main once
main to_and_fro
main forget
main consume
once mortal
mortal leaf
to_and_fro to_and_fro
to_and_fro leaf
forget mortal
forget forgotten
mortal forgotten
forgotten leaf
consume numbers
consume leaf
numbers leaf
other once"""


def leaf(n):
    return n + 1


# M_MMAP_THRESHOLD: malloc(3) would raise it with the first large block that is freed, and keep the next ones in its heap.
ctypes.CDLL(None).mallopt(-3, 128 << 10)
# 300 KB of instructions: more than malloc(3) takes from its heap.
TEXT = "def mortal(leaf):\n leaf(1)\n if leaf(2) == 0:\n" + "  leaf(leaf(leaf(leaf(leaf(3)))))\n" * 4000
CODE = compile(TEXT + " return leaf(4)\n", "<string>", "exec").co_consts[0]
FUNCTION = type(leaf)


def once(n):
    # The copy has one reference, that of its function, which has one, that of the call.
    FUNCTION(CODE.replace(co_firstlineno=n % 100 + 1), {})(leaf)


def forgotten(reference):
    leaf(5)


def forget(n):
    copy = CODE.replace(co_firstlineno=n % 100 + 1)
    reference = weakref.ref(copy, forgotten)
    function = FUNCTION(copy, {})
    del copy
    function(leaf)
    del function
    return reference


def to_and_fro(n):
    leaf(n)
    if n > 0:
        to_and_fro(n - 1)
        leaf(n)
        if n % 40 == 0:
            to_and_fro(n - 40)


def numbers(n):
    for number in range(n):
        yield leaf(number)


def consume(n):
    for number in numbers(n):
        leaf(number)


def other(end):
    n = 0
    while time.process_time() < end:
        n += 1
        once(n)


def main(seconds):
    end = time.process_time() + seconds
    thread = threading.Thread(target=other, args=(end,))
    thread.start()
    n = 0
    while time.process_time() < end:
        n += 1
        once(n)
        forget(n)
        to_and_fro(120 + n % 80)
        consume(10)
    thread.join()


main(float(sys.argv[1]))
print(EDGES)
