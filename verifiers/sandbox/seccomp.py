"""Seccomp filters: which system calls a process may still make, written as classic BPF.

Two filters are stacked. The fork server takes `server_filter`, a list of what is allowed: everything else, today's and
tomorrow's, gets EPERM. Its children add the short `program_filter`, which takes away what only the server needs.
(Installing a long filter for every run would cost as much as the run.)
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rlvr.verifiers.sandbox.kernel import CLONE_THREAD, PR_SET_SECCOMP, prctl
from rlvr.verifiers.sandbox.syscalls import AUDIT_ARCHITECTURES, BASIC, OPEN, WRITE, numbers

_SECCOMP_MODE_FILTER = 2
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16

_NAMESPACES = 0x7E020000
_WRITING_FLAGS = 0o3 | 0o100 | 0o1000 | 0o20000000  # O_ACCMODE, O_CREAT, O_TRUNC, O_TMPFILE
_FCNTLS = (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1031, 1032)  # no F_SETOWN: it sends signals to anyone
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # terminal size and mode, FIONREAD, FIONBIO, close-on-exec
_PRCTLS = (15, 16)  # the thread's name
_STREAM_PAIRS = (0x1, 0x801, 0x80001, 0x80801)  # a datagram of a pair could be sent to any socket's address


@dataclass(frozen=True)
class Check:
    """Allows a call by the low 32 bits of one argument."""

    argument: int
    equals: Collection[int] = ()
    """Allowed values."""
    lacks: int = 0
    """Or: allowed when none of these bits is set."""
    has: int = 0
    """Or: allowed when one of these bits is set and none of `lacks`."""


Rules = Mapping[str, Check | None]
"""System call -> when it is allowed; None for always."""


def server_filter(*, write: bool, execute: bool) -> bytes:
    """What the fork server and all its children may do at most.

    Args:
        write: files may be written as far as other layers allow it; without, nothing is opened for writing.
        execute: programs may be started.
    """
    rules: dict[str, Check | None] = dict.fromkeys([*BASIC, *OPEN])
    if write:
        rules |= dict.fromkeys(WRITE)
    else:
        rules |= {"open": Check(1, lacks=_WRITING_FLAGS), "openat": Check(2, lacks=_WRITING_FLAGS)}
    if execute:
        rules |= {"execve": None, "execveat": None}
    rules |= {
        "fcntl": Check(1, equals=_FCNTLS),
        "ioctl": Check(1, equals=_IOCTLS),
        "sched_getaffinity": Check(0, equals=(0,)),
        "clone": Check(0, lacks=_NAMESPACES),
        "socketpair": Check(1, equals=_STREAM_PAIRS),
        **dict.fromkeys(("fork", "vfork", "setsid", "kill", "tkill", "tgkill", "prlimit64", "prctl", "pidfd_open")),
        "landlock_restrict_self": None,
    }
    return _program(rules, otherwise=errno.EPERM)


def program_filter(*, fork: bool, signal_pid: int | None) -> bytes:
    """What is taken from a program under test, on top of the server's filter.

    Args:
        fork: it may start processes; without, only threads.
        signal_pid: the only process it may signal (its own); None where no other process is in its sight.
    """
    refused = Check(0)
    rules: dict[str, Check | None] = {
        "prctl": Check(0, equals=_PRCTLS),
        "pidfd_open": refused,
        "landlock_restrict_self": refused,
        "prlimit64": Check(0, equals=(0,)),
    }
    if not fork:
        rules |= {"fork": refused, "vfork": refused, "setsid": refused}
        rules["clone"] = Check(0, has=CLONE_THREAD, lacks=_NAMESPACES)
    if signal_pid is not None:
        rules |= dict.fromkeys(("kill", "tgkill"), Check(0, equals=(signal_pid,))) | {"tkill": refused}
    return _program(rules, otherwise=None)


def install(program: bytes) -> None:
    """For this process and all it starts; no_new_privs must be set. Raises OSError."""
    code = ctypes.create_string_buffer(program, len(program))
    fields = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    prctl(PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.create_string_buffer(fields, len(fields)))


def _program(rules: Rules, otherwise: int | None) -> bytes:
    """BPF code; calls without a rule get the error `otherwise`, or are allowed where it is None."""
    number_of = numbers()
    code = [
        _instruction(_LOAD, _ARCHITECTURE_OFFSET),
        _instruction(_EQUAL, AUDIT_ARCHITECTURES[platform.machine()], 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER_OFFSET),
    ]
    always = [number_of[name] for name, check in rules.items() if check is None and name in number_of]
    for start in range(0, len(always), 200):  # a jump reaches 255 instructions
        chunk = always[start : start + 200]
        code += [_instruction(_EQUAL, number, len(chunk) - i, 0) for i, number in enumerate(chunk)]
        code += [_instruction(0x05, 1), _instruction(_RETURN, _ALLOW)]
    for name, check in rules.items():
        if check is not None and name in number_of:
            body = _checked(check)
            code += [_instruction(_EQUAL, number_of[name], 0, len(body)), *body]
    # The C library falls back to clone and openat where these are not there.
    for name in ("clone3", "openat2"):
        code += [_instruction(_EQUAL, number_of[name], 0, 1), _instruction(_RETURN, _ERRNO | errno.ENOSYS)]
    code.append(_instruction(_RETURN, _ALLOW if otherwise is None else _ERRNO | otherwise))
    return b"".join(code)


def _checked(check: Check) -> list[bytes]:
    """Ends in a verdict for the call whose number was found equal."""
    allow, refuse = _instruction(_RETURN, _ALLOW), _instruction(_RETURN, _ERRNO | errno.EPERM)
    code = [_instruction(_LOAD, _ARGUMENTS_OFFSET + 8 * check.argument)]
    if check.lacks:
        code += [_instruction(_ANY_BIT, check.lacks, 0, 1), refuse]
        if not check.has:
            return [*code, allow]
    if check.has:
        return [*code, _instruction(_ANY_BIT, check.has, 0, 1), allow, refuse]
    for value in check.equals:
        code += [_instruction(_EQUAL, value, 0, 1), allow]
    return [*code, refuse]


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value & 0xFFFFFFFF)
