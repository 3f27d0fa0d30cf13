"""Allocates so many bytes in one function, and waits in another for a lock that the first thread holds."""

import threading

SIZE, COUNT = 200_000, 100


def allocating():
    return bytearray(SIZE)


def keeping():
    return [allocating() for _ in range(COUNT)]


def waiting():
    with lock:
        pass


kept = keeping()
lock = threading.Lock()
lock.acquire()
thread = threading.Thread(target=waiting)
thread.start()
thread.join(0.3)
lock.release()
thread.join()
print(SIZE * COUNT)
