"""Allocates below the same native frames from several Python ones: other callers, other lines, other depths, in turn, in two
threads. Prints `PATH ALLOCATIONS`, a path a line, outermost function first."""

import threading

SIZE, ROUNDS = 5_000, 9_000


def allocate():
    return bytearray(SIZE)


def first():
    allocate()


def second():
    allocate()
    allocate()


def recursing(depth):
    if depth:
        recursing(depth - 1)
    else:
        allocate()


def work():
    for number in range(ROUNDS):
        first()
        second()
        recursing(number % 3)


def other():
    work()


work()
thread = threading.Thread(target=other)
thread.start()
thread.join()
for outer in ("<module>", "other"):
    print(f"{outer} work first allocate", ROUNDS)
    print(f"{outer} work second allocate", 2 * ROUNDS)
    for depth in range(3):
        print(f"{outer} work{' recursing' * (depth + 1)} allocate", ROUNDS // 3)
