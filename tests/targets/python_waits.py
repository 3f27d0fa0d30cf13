"""Waits in functions of its own: below a recursion, in a generator, in a function that C calls back, for a lock in another thread, and
in a forked child. Prints the microseconds that each was blocked: by its own clock, without what the thread then waited for a processor,
by the kernel's count."""

import os
import threading
import time

ROUNDS = 10
SECONDS = 0.04
waited = {}


def clock():
    with open("/proc/thread-self/schedstat") as file:
        return time.monotonic() - int(file.read().split()[1]) / 1e9


def sleep(name):
    begun = clock()
    time.sleep(SECONDS)
    waited[name] = waited.get(name, 0) + clock() - begun


def recursing(depth):
    if depth:
        recursing(depth - 1)
    else:
        sleep("recursing")


def generating():
    for number in range(2):
        sleep("generating")
        yield number


def consuming():
    return sum(generating())


def called_back(item):
    sleep("called_back")
    return item


def sorting():
    return sorted([2, 1], key=called_back)


def locked(lock):
    begun = clock()
    with lock:
        waited["locked"] = clock() - begun


def tell():
    text = "".join(f"{name} {int(seconds * 1e6)}\n" for name, seconds in waited.items())
    os.write(1, text.encode())


def in_child():
    for _ in range(ROUNDS):
        sleep("in_child")


def forking():
    child = os.fork()
    if child == 0:
        waited.clear()
        in_child()
        tell()
        os._exit(0)
    os.waitpid(child, 0)


def main():
    lock = threading.Lock()
    with lock:
        thread = threading.Thread(target=locked, args=(lock,))
        thread.start()
        for _ in range(ROUNDS):
            recursing(3)
            consuming()
            sorting()
    thread.join()
    forking()
    tell()


main()
