"""`python_unlinked.py SECONDS`: computes while the outermost frame of the innermost call of the evaluation loop has no caller, as
greenlet leaves the frames of a greenlet in 3.12 and later when it switches to another."""

import ctypes
import sys
import time
import zlib

# PyThreadState.cframe or current_frame, _PyCFrame.current_frame (if any), _PyInterpreterFrame.previous, .owner
OFFSETS = {12: (56, 0, 8, 70), 13: (72, None, 8, 70)}
BIG = bytes(1 << 16)
get_state = ctypes.pythonapi.PyThreadState_Get
get_state.restype = ctypes.c_void_p


def word(address):
    return ctypes.c_uint64.from_address(address)


def unlinked(seconds):
    thread_frame, c_frame_current, previous, owner = OFFSETS[sys.version_info[1]]
    frame = word(get_state() + thread_frame).value
    if c_frame_current is not None:
        frame = word(frame + c_frame_current).value
    while ctypes.c_uint8.from_address(word(frame + previous).value + owner).value < 3:
        frame = word(frame + previous).value
    link = word(frame + previous)
    caller = link.value
    end = time.process_time() + seconds
    link.value = 0
    while time.process_time() < end:
        zlib.crc32(BIG)
    link.value = caller


def deep(n, seconds):
    deep(n - 1, seconds) if n else unlinked(seconds)


deep(10, float(sys.argv[1]))
print("done")
