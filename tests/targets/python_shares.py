"""Burns known shares of CPU time in five functions: in a recursion, a generator, another thread, the library, and a
function that C calls back. `python_shares.py LIBRARY SECONDS`; prints the shares, in percent."""

import ctypes
import json
import re
import sys
import threading
import time
import zlib

SHARES = {"recursing": 10, "generating": 15, "in_thread": 20, "in_library": 25, "called_back": 30}
ROUNDS = 10


def burn(end):
    total = 0
    while time.thread_time() < end:
        for number in range(400):
            total += number * number
    return total


def until(name, seconds):
    return time.thread_time() + seconds * SHARES[name] / 100 / ROUNDS


def recursing(depth, end):
    return recursing(depth - 1, end) if depth else burn(end)


def generating(end):
    while time.thread_time() < end:
        yield burn(min(end, time.thread_time() + 0.002))


def consuming(end):
    return sum(1 for _ in generating(end))


def in_thread(seconds):
    burn(until("in_thread", seconds))


def in_library(end):
    while time.thread_time() < end:
        text = json.dumps(list(range(500)))
        re.findall("[0-9]+", text)
        zlib.compress(text.encode())


def called_back():
    burn(time.thread_time() + CALLED_BACK)


def main(library, seconds):
    global CALLED_BACK
    call_back = ctypes.PyDLL(library).call_back
    call_back.argtypes = [ctypes.py_object, ctypes.c_long]
    for _ in range(ROUNDS):
        recursing(20, until("recursing", seconds))
        consuming(until("generating", seconds))
        thread = threading.Thread(target=in_thread, args=(seconds,))
        thread.start()
        thread.join()
        in_library(until("in_library", seconds))
        CALLED_BACK = seconds * SHARES["called_back"] / 100 / ROUNDS / 5
        call_back(called_back, 5)
    print(json.dumps(SHARES))


main(sys.argv[1], float(sys.argv[2]))
