"""`python_handed.py SECONDS LIBRARY`: the main thread hands its thread state to another one and computes meanwhile; the other one
calls functions whose code goes back to the kernel as soon as it is freed (`python_mortal.py` has the reasons)."""

import ctypes
import sys
import time

hand = ctypes.PyDLL(sys.argv[2]).hand
hand.argtypes, hand.restype = [ctypes.py_object], ctypes.py_object


def leaf(n):
    return n + 1


# M_MMAP_THRESHOLD
ctypes.CDLL(None).mallopt(-3, 128 << 10)
TEXT = "def mortal(leaf):\n leaf(1)\n if leaf(2) == 0:\n" + "  leaf(leaf(leaf(leaf(leaf(3)))))\n" * 4000
CODE = compile(TEXT + " return leaf(4)\n", "<string>", "exec").co_consts[0]
FUNCTION = type(leaf)
# One line, one name: a copy at the address of an earlier one is taken for a known function.
END = time.process_time() + float(sys.argv[1])


def deep(n):
    if n > 0:
        return deep(n - 1)
    for _ in range(20):
        FUNCTION(CODE.replace(), {})(leaf)
    return True


def work():
    return deep(20)


def main():
    while time.process_time() < END:
        assert hand(work)


main()
