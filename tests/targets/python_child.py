"""A child that calls many functions, each for 3 ms of its CPU time. First prints the bytes of the file that it shares with a
recorder."""
import os
import time

FUNCTIONS = 400


def region_bytes():
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if line.rstrip().endswith(".region")}
    return sum(os.stat(path).st_blocks * 512 for path in paths)


def function(number):
    name = f"one_of_many_functions_{number}"
    names = {}
    body = "    until = time.thread_time() + 0.003\n    while time.thread_time() < until:\n        pass\n"
    exec(compile(f"def {name}():\n{body}", f"one_of_many_files_{number}.py", "exec"), {"time": time}, names)
    return names[name]


functions = [function(number) for number in range(FUNCTIONS)]
if os.fork() == 0:
    print(region_bytes(), flush=True)
    for function in functions:
        function()
    os._exit(0)
os.wait()
