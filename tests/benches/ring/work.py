"""What CPython's share of the sizes is measured on: objects, recursion, regular expressions, JSON, sorting."""
import json
import re
import sys
import time


class Node:
    def __init__(self, depth):
        self.children = [Node(depth - 1) for _ in range(3)] if depth else []
        self.value = depth

    def total(self):
        return self.value + sum(child.total() for child in self.children)


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def words():
    counts = {}
    for word in re.findall(r"\w+", "the quick brown fox jumps over the lazy dog " * 50):
        counts[word] = counts.get(word, 0) + 1
    return json.dumps(sorted(counts.items(), key=lambda item: item[1]))


def below(depth, function):
    """Calls by way of C, which shows in the stack of the processor."""
    if depth == 0:
        return function()
    return sorted((None,), key=lambda _: below(depth - 1, function) is None)


end = time.process_time() + float(sys.argv[1])
while time.process_time() < end:
    below(2, lambda: Node(5).total())
    below(1, lambda: fibonacci(14))
    below(3, words)
    below(1, lambda: sorted(range(2000), key=lambda x: -x))
    below(2, lambda: [json.loads('[1, 2, {"a": [3, 4]}]') for _ in range(50)])
