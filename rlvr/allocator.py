"""How the C library's allocator treats the large blocks of a training step."""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress

# Numbers of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def keep_freed_memory() -> bool:
    """Keeps what the process frees for its next allocations instead of giving it back to the kernel.

    A step on the CPU frees and takes gigabytes of activations again and again; to have the kernel map and clear each
    page anew took a quarter of SmolLM2's update, and the peak is the same without. For processes that train or sample,
    not for a host program.

    Returns:
        Whether the C library took the setting; others than glibc do not know it.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, -1))


def give_back_freed_memory() -> None:
    """Gives what was freed, and kept, back to the kernel: for the process that works next."""
    with suppress(AttributeError, OSError, TypeError):  # of glibc alone
        ctypes.CDLL(None).malloc_trim(0)


def discard(address: int, num_bytes: int) -> None:
    """Gives the whole pages of a piece of memory back to the kernel; it stays allocated, and its values are lost.

    Raises:
        OSError: the piece is not all mapped.
    """
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (address + num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
    libc = ctypes.CDLL(None, use_errno=True)
    if length > 0 and libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_DONTNEED):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
