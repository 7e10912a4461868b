"""The fork server: an interpreter that is up, confined as far as the machine allows, and forks a child for every run.

It is started with a clean environment and never sees a test: a request carries limits and descriptors, and the source
is read by the child. One run at a time; before a run is reported, everything that it started is dead and its folder is
empty. Messages on the control socket are JSON, one a packet:

    server -> owner   {"ready": true} or {"failed": why}                 once
    owner -> server   {"mode": "program" | "calls", limits}              with the descriptors of the run
    owner -> server   "stop"                                             any time: ends the run
    server -> owner   {"status": waitpid's, "seconds": cpu, "ended": why}    when a run is over
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from rlvr.verifiers.sandbox import guest, kernel, landlock, namespaces, seccomp

PRELOADED = "atexit bisect collections copy functools heapq itertools math operator re string time traceback typing"
"""What most solutions import; for the rest the memory that every fork copies is too high a price."""

WATCH_SECONDS = 0.05

FOLDER_PREFIX = "/tmp/rlvr-sandbox-"
"""Of a server's own folder where it has no file system of its own; its process number follows."""


class Confinement(NamedTuple):
    """What the server takes on itself when it starts."""

    namespaces: bool
    landlock: bool
    seccomp: bool
    max_processes: int
    """Of a run at a time; 1 refuses fork."""
    memory_bytes: int
    """Address space of all processes of a run together; each has an equal share."""
    file_bytes: int
    """Longest file, and room in the own folder."""
    readable: list[str]
    command: list[str]
    """Starts a program of another language; empty for Python."""
    file: str
    """Where the command finds it, in the own folder."""


class Server:
    """One fork server after it has confined itself."""

    def __init__(self, confinement: Confinement, control: socket.socket, uid: int | None) -> None:
        self.confinement, self.control = confinement, control
        self.own = self._make_own_folder(uid)
        self.rules = landlock.ruleset(self._visible(), self.own) if confinement.landlock else None
        self.owns_every_process = confinement.namespaces or uid is not None
        """Everything that this process can signal was started by the program under test."""
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        if uid is not None:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        kernel.drop_capabilities()
        self.program_filter: bytes | None = None
        self.num_tasks = 0 if confinement.namespaces or uid is not None else _tasks_of_user()
        if confinement.seccomp:
            seccomp.install(seccomp.server_filter(write=self.own is not None, execute=bool(confinement.command)))
            if confinement.namespaces:
                self.program_filter = seccomp.program_filter(fork=confinement.max_processes > 1, signal_pid=None)

    def _make_own_folder(self, uid: int | None) -> str | None:
        if self.confinement.namespaces:
            return namespaces.OWN_FOLDER
        if not self.confinement.landlock:
            return None
        folder = f"{FOLDER_PREFIX}{os.getpid()}-{os.urandom(8).hex()}"
        os.mkdir(folder, 0o700)
        if uid is not None:
            os.chown(folder, uid, uid)
        return folder

    def _visible(self) -> list[str]:
        return [*self.confinement.readable, *namespaces.DEVICES]

    # ---- runs

    def serve(self) -> None:
        """Until the owner hangs up, or dies with a report unread."""
        try:
            with contextlib.suppress(ConnectionError):
                while self._serve_one():
                    pass
        finally:
            if self.own is not None and not self.confinement.namespaces:
                parent, name = os.path.split(self.own)
                # Relative to a descriptor it is unlinkat, which the filter lets pass; rmdir it does not.
                os.rmdir(name, dir_fd=os.open(parent, os.O_PATH | os.O_DIRECTORY))

    def _serve_one(self) -> bool:
        """One message; False when the owner is gone."""
        data, descriptors, _, _ = socket.recv_fds(self.control, 1 << 16, 8)
        if data == b"stop":  # crossed the end of the run on its way
            return True
        report = self._run(json.loads(data), descriptors) if data else None
        for descriptor in descriptors:
            os.close(descriptor)
        if report is None:
            return False
        self.control.send(json.dumps(report).encode())
        return True

    def _run(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any] | None:
        """The report; None when the owner is gone."""
        pid = os.fork()
        if pid == 0:
            self._be_program(request, descriptors)
        ended = self._wait(os.pidfd_open(pid), float(request["wall_seconds"]))
        status, used = self._end_all(pid)
        self._empty_folder()
        if ended == "owner gone":
            return None
        return {"status": status, "seconds": used.ru_utime + used.ru_stime, "ended": ended}

    def _wait(self, process: int, wall_seconds: float) -> str:
        """Why the run is over: `exit`, `wall`, `stop`, `disk` or `owner gone`."""
        deadline = time.monotonic() + wall_seconds
        poll = select.poll()
        poll.register(process, select.POLLIN)
        poll.register(self.control, select.POLLIN)
        try:
            while (left := deadline - time.monotonic()) > 0:
                ready = dict(poll.poll(1000 * min(left, WATCH_SECONDS)))
                if process in ready:
                    return "exit"
                if ready:
                    with contextlib.suppress(ConnectionError):
                        return "stop" if self.control.recv(1 << 16) else "owner gone"
                    return "owner gone"
                if self._folder_bytes() > self.confinement.file_bytes:
                    return "disk"
            return "wall"
        finally:
            os.close(process)

    def _end_all(self, pid: int) -> tuple[int, resource.struct_rusage]:
        """Kills and reaps the program and everything that it started."""
        with contextlib.suppress(ProcessLookupError):
            if self.owns_every_process:
                os.kill(-1, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGKILL)
        _, status, used = os.wait4(pid, 0)
        if self.owns_every_process:
            with contextlib.suppress(ChildProcessError):
                while True:
                    os.waitpid(-1, 0)
        return status, used

    def _folder_bytes(self) -> int:
        """More than any limit where files are too many."""
        if self.own is None or self.confinement.namespaces:  # a file system of fixed size there
            return 0
        total = 0
        with os.scandir(self.own) as entries:
            for count, entry in enumerate(entries):
                if count > 4096:
                    return 1 << 62
                with contextlib.suppress(FileNotFoundError):
                    total += entry.stat(follow_symlinks=False).st_size
        return total

    def _empty_folder(self) -> None:
        if self.own is not None:
            for name in os.listdir(self.own):
                os.unlink(os.path.join(self.own, name))

    # ---- the child

    def _be_program(self, request: dict[str, Any], descriptors: list[int]) -> NoReturn:
        try:
            self.control.close()
            if not self.owns_every_process:
                kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
            os.setsid()
            source, *streams = descriptors
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            if self.own is not None:
                os.chdir(self.own)
            self._limit(request)
            if self.rules is not None:
                landlock.restrict(self.rules)
            first = os.dup2(source, 3) + 1
            os.closerange(first, 1 << 10)
            if self.confinement.seccomp:
                seccomp.install(self.program_filter or self._own_filter())
            if self.confinement.command:
                guest.start_command(3, self.confinement.file, self.confinement.command)
            if request["mode"] == "calls":
                guest.serve_calls(3)
            guest.run_program(3)
        finally:
            os._exit(126)

    def _own_filter(self) -> bytes:
        return seccomp.program_filter(fork=self.confinement.max_processes > 1, signal_pid=os.getpid())

    def _limit(self, request: dict[str, Any]) -> None:
        cpu = max(1, int(request["cpu_seconds"] + 0.999))
        confinement = self.confinement
        # Threads count as processes; a program that may not fork still needs some.
        share = confinement.memory_bytes // confinement.max_processes
        processes = confinement.max_processes + (64 if confinement.max_processes == 1 else 1) + self.num_tasks
        for kind, soft, hard in (
            (resource.RLIMIT_CPU, cpu, cpu + 1),
            (resource.RLIMIT_AS, share, share),
            (resource.RLIMIT_FSIZE, confinement.file_bytes, confinement.file_bytes),
            (resource.RLIMIT_NOFILE, 64, 64),
            (resource.RLIMIT_NPROC, processes, processes),
            (resource.RLIMIT_CORE, 0, 0),
            (resource.RLIMIT_MEMLOCK, 0, 0),
        ):
            resource.setrlimit(kind, (soft, hard))


def _tasks_of_user() -> int:
    """Threads of this user now, which the limit on processes counts as well; and some for what it may yet start."""
    total = 256
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == os.getuid():
                total += len(os.listdir(f"/proc/{pid}/task"))
    return total


def main(descriptor: int, options: str) -> None:
    """Args: the control socket, and a `Confinement` as JSON."""
    control = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # An identity that no other process has: what it may signal is its own, and its limits count itself alone.
    uid = 0x70000000 + os.getpid() if os.geteuid() == 0 else None
    try:
        confinement = Confinement(**json.loads(options))
        for name in PRELOADED.split():
            import_module(name)
        if confinement.namespaces:
            namespaces.unshare()
            process = os.fork()
            if process:
                control.close()
                kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
                os.waitpid(process, 0)
                os._exit(0)
            namespaces.enter_root(confinement.readable, confinement.file_bytes, proc=confinement.landlock)
        server = Server(confinement, control, uid)
        if confinement.namespaces:
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # a new identity clears it, so not earlier
        if not os.access(os.path.dirname(os.__file__), os.R_OK | os.X_OK):
            raise PermissionError(
                f"the interpreter at {sys.executable} cannot be read by another user than its owner, and programs run "
                "as another one; name one that can in sandbox.python, as /usr/bin/python3"
            )
    except Exception as error:
        control.send(json.dumps({"failed": f"{error}"}).encode())
        return
    gc.freeze()
    control.send(b'{"ready": true}')
    server.serve()
