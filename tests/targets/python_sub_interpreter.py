"""1.5 s in a sub-interpreter, then 0.5 s in the main one, whose frames are then alone again."""

import time

try:
    import _interpreters
    run = _interpreters.exec
except ImportError:
    import _xxsubinterpreters as _interpreters
    run = _interpreters.run_string

CODE = """
import time


def sub_leaf(n):
    s = 0
    for i in range(20000):
        s += i
    return s


def sub_main():
    end = time.process_time() + 1.5
    while time.process_time() < end:
        sub_leaf(1)


sub_main()
"""


def after():
    end = time.process_time() + 0.5
    while time.process_time() < end:
        sum(range(1000))


def main():
    end = time.process_time() + 0.1
    while time.process_time() < end:
        sum(range(1000))
    interpreter = _interpreters.create()
    run(interpreter, CODE)
    after()
    _interpreters.destroy(interpreter)


main()
