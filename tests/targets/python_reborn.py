"""Functions in the memory of functions that are gone: where the interpreter frees names, each generation's code objects and names
take the places of the last one's, with the same lines, and only the text of the names tells them apart; of another function,
only the text of the file's name. `python_reborn.py GENERATIONS` allocates BYTES in each, twice on one line and once on another,
and prints `GENERATION BYTES ADDRESS` a line."""

import sys

BYTES, TIMES = 50_000, 30


def inner():
    for _ in range(TIMES):
        bytearray(BYTES), bytearray(BYTES)
        bytearray(BYTES)


def outer(inner):
    inner()


def moved():
    bytearray(BYTES)


def changed(function, *names):
    code = function.__code__
    names = {name: "%s_%03d" % (function.__name__, number) for name in names if hasattr(code, name)}
    return type(function)(code.replace(**names), globals())


def generation():
    function = changed(inner, "co_name", "co_qualname")
    changed(outer, "co_name", "co_qualname")(function)
    for _ in range(TIMES):
        changed(moved, "co_filename")()
    return id(function.__code__)


for number in range(int(sys.argv[1])):
    print(f"{number:03}", BYTES * TIMES, hex(generation()))
