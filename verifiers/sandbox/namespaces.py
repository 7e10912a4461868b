"""A file system, a process table and a network of its own: what a container has, made once for the fork server."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable

from rlvr.verifiers.sandbox import kernel
from rlvr.verifiers.sandbox.kernel import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY, MS_REC, MS_REMOUNT
from rlvr.verifiers.sandbox.syscalls import numbers

OWN_FOLDER = "/work"
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

_FLAGS = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
_SCAFFOLD = "/tmp"  # any folder: what is mounted on it is seen by nobody else and leaves with this process


def unshare() -> None:
    """New namespaces; the next child is process 1 of its own process table.

    An ordinary user gets them inside a user namespace, in which its own id stays what it is.

    Raises:
        OSError: the kernel, its settings or a container refuse.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        kernel.unshare(_FLAGS)
        return
    kernel.unshare(_FLAGS | kernel.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def enter_root(readable: Iterable[str], own_bytes: int, proc: bool) -> None:
    """Leaves the machine's files behind: `readable` at the same paths, an empty `OWN_FOLDER`, a few devices.

    Args:
        own_bytes: room in the own folder, held in memory.
        proc: mount the own process table; only where something else keeps its files from being read.

    Raises:
        OSError: a mount is refused.
    """
    sources = [(path, os.open(path, os.O_PATH)) for path in dict.fromkeys(readable) if os.path.exists(path)]
    devices = [(path, os.open(path, os.O_PATH)) for path in DEVICES if os.path.exists(path)]
    socket.sethostname("sandbox")
    kernel.mount("none", "/", "", MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", _SCAFFOLD, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    os.umask(0o022)
    for path, source in sources:
        _bind(source, _SCAFFOLD + path, MS_RDONLY | MS_NOSUID | MS_NODEV)
    for path, source in devices:
        _bind(source, _SCAFFOLD + path, MS_NOSUID | MS_NOEXEC)
    for i, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{i}", f"{_SCAFFOLD}/dev/{name}")
    os.mkdir(_SCAFFOLD + "/proc")
    if proc:
        kernel.mount("proc", _SCAFFOLD + "/proc", "proc", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    os.mkdir(_SCAFFOLD + OWN_FOLDER)
    room = f"size={own_bytes},nr_inodes=4096,mode=777"
    kernel.mount("tmpfs", _SCAFFOLD + OWN_FOLDER, "tmpfs", MS_NOSUID | MS_NODEV, room)
    os.chdir(_SCAFFOLD)
    kernel.syscall("pivot_root", numbers()["pivot_root"], b".", b".")
    kernel.unmount(".")
    os.chdir("/")
    kernel.mount("none", "/", "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    for _, descriptor in (*sources, *devices):
        os.close(descriptor)


def _bind(source: int, target: str, flags: int) -> None:
    origin = f"/proc/self/fd/{source}"
    if os.path.isdir(origin):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.exists(target):
            open(target, "x").close()
    kernel.mount(origin, target, "", MS_BIND | MS_REC)
    kept = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)  # a user namespace may not take these away
    kernel.mount("none", target, "", MS_REMOUNT | MS_BIND | flags | kept)
