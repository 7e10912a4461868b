"""Landlock: which files a process may reach, without any privilege (Linux 5.13 or newer; also inside containers)."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

from rlvr.verifiers.sandbox.kernel import syscall

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every processor
_VERSION = 1
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_REMOVE_FILE, _MAKE_REG = 32, 256
_TRUNCATE = 1 << 14
_FS_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF}
"""ABI -> every right on files that it can take away; newer ones take the last."""

_READ = _READ_FILE | _READ_DIR | _EXECUTE
_OWN = _READ | _WRITE_FILE | _REMOVE_FILE | _MAKE_REG | _TRUNCATE
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE


def abi() -> int:
    """The kernel's Landlock version; 0 where there is none."""
    try:
        return syscall("landlock_create_ruleset", _CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    except OSError:
        return 0


def ruleset(readable: Iterable[str], own: str | None) -> int:
    """A descriptor of the rules: TCP, signals and abstract sockets outward go too where the kernel can take them.

    Args:
        readable: files and folders (with all below) that may be read and executed; missing ones are skipped.
        own: folder in which files may be made, written and removed.

    Raises:
        OSError: the kernel has no Landlock, or refuses it here.
    """
    version = abi()
    handled = _FS_RIGHTS.get(version, _FS_RIGHTS[5])
    network, scoped = (3 if version >= 4 else 0), (3 if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    attributes = struct.pack("=QQQ", handled, network, scoped)[:size]
    rules = syscall("landlock_create_ruleset", _CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    for path in readable:
        _allow(rules, path, _READ & handled)
    if own is not None:
        _allow(rules, own, _OWN & handled)
    return rules


def restrict(rules: int) -> None:
    """This process and all it starts, for good; no_new_privs must be set. Raises OSError."""
    syscall("landlock_restrict_self", _RESTRICT_SELF, rules, 0)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        target = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):
            rights &= _FILE_RIGHTS
        rule = struct.pack("=Qi", rights, target)
        syscall("landlock_add_rule", _ADD_RULE, rules, _PATH_BENEATH, rule, 0)
    finally:
        os.close(target)
