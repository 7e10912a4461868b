"""The few system calls of Linux that Python does not offer, by ctypes alone: nothing to install, nothing to compile."""

from __future__ import annotations

import ctypes
import os

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
PR_SET_CHILD_SUBREAPER = 36

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_NEWCGROUP, CLONE_THREAD = 0x02000000, 0x00010000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(name: str, number: int, *arguments: object) -> int:
    """Raises OSError as the functions of `os` do."""
    return _checked(_libc.syscall(ctypes.c_long(number), *arguments), name)


def prctl(option: int, value: int, pointer: object = 0) -> None:
    """Raises OSError."""
    zero = ctypes.c_ulong(0)
    _checked(_libc.prctl(option, ctypes.c_ulong(value), pointer or zero, zero, zero), f"prctl {option}")


def unshare(flags: int) -> None:
    """Raises OSError."""
    _checked(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Raises OSError."""
    _checked(
        _libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode()), f"mount on {target}"
    )


def unmount(target: str) -> None:
    """Detaches a mount. Raises OSError."""
    _checked(_libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def drop_capabilities() -> None:
    """Every capability of this process, for good under no_new_privs. Raises OSError."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    _checked(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
