"""Which confinement this machine offers, proved by trying to break out of it, and what is not guaranteed then."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from rlvr.verifiers.sandbox import landlock
from rlvr.verifiers.sandbox.box import Sandbox
from rlvr.verifiers.sandbox.options import LEVELS, Level, Limits, Outcome, SandboxError, SandboxOptions
from rlvr.verifiers.sandbox.probe import PROBE

PROMISES = {
    "network": "no connection is made, not even on this machine",
    "write": "no file outside its folder is made, changed or removed",
    "processes": "no other process is signalled or read",
    "leftovers": "nothing that it started outlives it",
    "limits": "memory, processes, CPU time, wall time and output are bounded",
    "read": "no file outside its folder and the interpreter is read",
    "sight": "other files and processes are not even seen to exist",
}

_HELD: dict[Level, int] = {"namespaces": 7, "landlock": 6, "seccomp_only": 5, "none": 0}
"""How many of the promises, in their order, a level makes."""

_PROBE_LIMITS = Limits(cpu_seconds=5, wall_seconds=20)


def _allow_namespaces() -> str:
    if os.geteuid() == 0:
        return "they need CAP_SYS_ADMIN (docker run --privileged)"
    return (
        "allow user namespaces with sysctl: user.max_user_namespaces=10000, kernel.unprivileged_userns_clone=1 "
        "(Debian), kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu); in a container, the seccomp profile must "
        "have unshare"
    )


_MENDS: dict[Level, Callable[[], str]] = {
    "namespaces": _allow_namespaces,
    "landlock": lambda: "it needs Linux 5.13 or newer with landlock in its lsm= list; in Docker, version 23 or newer",
    "seccomp_only": lambda: "it needs Linux with seccomp filters on x86_64 or aarch64",
}


@dataclass(frozen=True)
class Assessment:
    """What was found."""

    level: Level | None
    """The strongest that holds all it promises; None where not even the weakest does."""
    failures: dict[Level, str]
    """Stronger levels that were tried -> why not."""

    @property
    def not_guaranteed(self) -> list[str]:
        held = _HELD[self.level] if self.level else 0
        return list(PROMISES.values())[held:]

    @property
    def guaranteed(self) -> list[str]:
        return list(PROMISES.values())[: _HELD[self.level] if self.level else 0]

    def mends(self) -> dict[Level, str]:
        """Stronger levels that failed -> what went wrong and what brings it."""
        return {
            level: why if "sandbox.python" in why else f"{why}; {_MENDS[level]()}"
            for level, why in self.failures.items()
        }


def assess(options: SandboxOptions) -> Assessment:
    """Tries the level asked for, or all from the strongest; a tenth of a second each, once in a process."""
    return _assess(replace(options, require="none", remote=None))


@cache
def _assess(options: SandboxOptions) -> Assessment:
    if options.level == "none":
        return Assessment("none", {})
    failures: dict[Level, str] = {}
    for level in LEVELS[:-1] if options.level == "auto" else (options.level,):
        broken = failure(level, options)
        if not broken:
            return Assessment(level, failures)
        failures[level] = broken
    return Assessment(None, failures)


def failure(level: Level, options: SandboxOptions) -> str:
    """Why the level does not hold on this machine; empty when it does."""
    if level == "landlock" and not landlock.abi():
        return "the kernel has no Landlock"
    try:
        with Sandbox(level, options) as sandbox:
            broken = _probe(sandbox)
    except SandboxError as error:
        return str(error)
    promised = list(PROMISES)[: _HELD[level]]
    return "; ".join(f"not so: {PROMISES[name]} ({broken[name]})" for name in promised if name in broken)


def shortfall(options: SandboxOptions) -> str:
    """Why programs must not be run with these options, and the mend; empty when they may."""
    found = assess(options)
    if found.level is not None and LEVELS.index(found.level) <= LEVELS.index(options.require):
        return ""
    if options.level != "auto" and LEVELS.index(options.level) > LEVELS.index(options.require):
        return f"level={options.level} is weaker than that; write require={options.level} as well if it is meant"
    have = f"this machine gives {found.level}" if found.level else "this machine gives nothing that holds"
    weaker = "" if found.level is None else f"; or accept less with sandbox.require={found.level}"
    reasons = dict.fromkeys(found.mends().values())
    return f"{have}: {'. '.join(reasons)}{weaker}"


def _probe(sandbox: Sandbox) -> dict[str, str]:
    """Promise -> what the probe could do, as seen from outside where that is possible."""
    with _canaries() as (folder, token, tcp, unix):
        sandbox.start()
        before = descendants(sandbox.pid)
        source = PROBE.format(
            folder=str(folder),
            port=tcp.getsockname()[1],
            outside=os.getpid(),
            memory=sandbox.options.memory_mb << 20,
            processes=sandbox.options.max_processes,
        )
        outcome = sandbox.program(source, "", _PROBE_LIMITS)
        broken = _told(outcome)
        if token.encode() in outcome.stdout:
            broken["read"] = "a file was read"
        if sorted(os.listdir(folder)) != ["canary", "socket"] or (folder / "canary").read_text() != token:
            broken["write"] = "a file was changed"
        if _accepted(tcp) or _accepted(unix):
            broken["network"] = "a connection arrived"
        if descendants(sandbox.pid) != before:
            broken["leftovers"] = "a process is left"
    return broken


def _told(outcome: Outcome) -> dict[str, str]:
    """What the probe says that it could do: `promise: what` lines, and `done` at the end."""
    lines = outcome.stdout.decode(errors="replace").split("\n")
    if "done" not in lines:
        raise SandboxError(f"the self-test did not end well: {outcome.ended} {outcome.why}")
    pairs = (line.split(": ", 1) for line in lines if ": " in line)
    return {name: what for name, what in pairs if name in PROMISES}


@contextmanager
def _canaries() -> Iterator[tuple[Path, str, socket.socket, socket.socket]]:
    """A folder that all may read and write with a secret in it, and two sockets that listen."""
    token = secrets.token_hex(16)
    with (
        tempfile.TemporaryDirectory(prefix="rlvr-canary-") as name,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        folder = Path(name)
        (folder / "canary").write_text(token)
        unix.bind(str(folder / "socket"))
        unix.listen()
        for path, mode in ((folder, 0o777), (folder / "canary", 0o666), (folder / "socket", 0o666)):
            path.chmod(mode)
        tcp.setblocking(False)
        unix.setblocking(False)
        yield folder, token, tcp, unix


def _accepted(listening: socket.socket) -> bool:
    try:
        listening.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def descendants(pid: int) -> set[int]:
    """Processes below `pid`, by the process table."""
    below: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{name}/stat").read_text()
        except OSError:
            continue
        below.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(name))
    found: set[int] = set()
    frontier = [pid]
    while frontier:
        children = below.get(frontier.pop(), [])
        found.update(children)
        frontier += children
    return found
