"""Hazard: a program with more functions than others, each of which allocates. Their names need room."""

COUNT = 20_000
DEFINITION = "def function_{0}():\n    return bytes(1000)\n"

# In parts, so that compiling does not take much memory.
module = {}
for first in range(0, COUNT, 500):
    text = "\n".join(DEFINITION.format(number) for number in range(first, first + 500))
    exec(compile(text, "generated_functions.py", "exec"), module)
for number in range(COUNT):
    module["function_%d" % number]()
