"""Enters the evaluation loop from C, always at the same depth: `python_enters.py ROUNDS`. First it prints its process id and the
address of the loop, and waits for a line, so that a debugger can attach."""

import ctypes
import os
import sys


def inner(text):
    return text


def middle(rounds):
    # Between two calls, the library overwrites what the last one has left on the stack.
    texts = map(repr, [[1.5, [2.5, (3.5,)]]] * rounds)
    return sum(map(len, map(inner, texts)))


def outer(rounds):
    return sum(map(middle, [rounds]))


loop = ctypes.cast(ctypes.pythonapi._PyEval_EvalFrameDefault, ctypes.c_void_p).value
print(os.getpid(), loop, flush=True)
sys.stdin.readline()
outer(int(sys.argv[1]))
