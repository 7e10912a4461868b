"""How the C library's allocator treats the large blocks of a training step."""

from __future__ import annotations

import ctypes

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
