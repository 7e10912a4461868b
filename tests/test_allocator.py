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
