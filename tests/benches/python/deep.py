"""`deep.py DEPTH LIBRARY`: so many Python frames, each of a function of its own, and events of a tracepoint below; prints what an
event takes. `deep.py DEPTH - LOOPS` computes there instead."""

import ctypes
import sys

depth, library = int(sys.argv[1]), sys.argv[2]


def compute(n):
    for _ in range(int(sys.argv[3])):
        for k in range(20000):
            n += k ^ n & 255


if library == "-":
    inner = compute
else:
    events = ctypes.CDLL(library).events
    events.argtypes, events.restype = [ctypes.c_long], ctypes.c_double
    inner = lambda n: print(events(2000))

# Functions of some size, as programs have them: their code and names lie on many pages.
body = "\n".join(f"    if n == {case}: n += {case} * 3" for case in range(-30, -1))
for number in range(depth - 2):
    scope = {"inner": inner}
    exec(f"def function_number_{number}(n):\n{body}\n    return inner(n)\n", scope)
    inner = scope[f"function_number_{number}"]
inner(7)
