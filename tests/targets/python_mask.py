"""Says which signals are blocked after many allocations and waits for locks, in two threads."""

import json
import signal
import threading

lock = threading.Lock()


def work():
    for number in range(2000):
        with lock:
            json.loads(json.dumps({"number": number, "text": str(number) * 20}))


def blocked():
    return sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))


def run():
    work()
    found.append(blocked())


found = []
thread = threading.Thread(target=run)
thread.start()
run()
thread.join()
print(found)
