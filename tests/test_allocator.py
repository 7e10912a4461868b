"""What the kernel is asked for, in a process of its own: the settings cannot be taken back."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from rlvr.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
faults = []
for _ in range(5):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = bytearray(64 << 20)
    block[:: 4096] = b"x" * (len(block) // 4096)
    del block
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(faults[1:]))
"""


def faults(mode: str) -> int:
    """Pages that one more allocation of 64 MiB takes from the kernel."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_memory_that_was_freed_is_not_mapped_again() -> None:
    assert faults("default") > 10_000
    assert faults("kept") < 100


GIVING_BACK = """
import ctypes
from rlvr.allocator import discard, give_back_freed_memory, keep_freed_memory

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096 / 2**20

assert keep_freed_memory()
block, whole = bytearray(b"x" * (64 << 20)), ctypes.create_string_buffer(b"x" * (64 << 20), 64 << 20)
full = resident()
del block
assert resident() > full - 1
give_back_freed_memory()
freed = resident()
assert freed < full - 60
discard(ctypes.addressof(whole) + 10, (64 << 20) - 20)
assert resident() < freed - 60
assert whole.raw[:10] == b"x" * 10 and whole.raw[-10:] == b"x" * 10
assert whole.raw[32 << 20] == 0
discard(ctypes.addressof(whole), 100)  # no whole page
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_memory_can_be_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", GIVING_BACK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
