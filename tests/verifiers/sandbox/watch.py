"""Runs the escape programs and watches the machine from outside; also as another user, in a forked process."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from escapes import ESCAPES

from rlvr.verifiers.sandbox import box
from rlvr.verifiers.sandbox.levels import descendants
from rlvr.verifiers.sandbox.options import Limits, SandboxOptions

NOBODY = 65534
LIMITS = Limits(cpu_seconds=1, wall_seconds=1.5)
SLACK_SECONDS = 6.0  # of a busy machine


def common_python() -> str:
    """An interpreter that every user may run."""
    if os.geteuid() != 0:
        return sys.executable
    for python in (os.path.realpath(sys.executable), "/usr/bin/python3", "/usr/local/bin/python3"):
        tried = [python, "-c", "import sys; assert sys.version_info >= (3, 9)"]
        with suppress(OSError):
            if subprocess.run(tried, user=NOBODY, group=NOBODY, cwd="/", capture_output=True).returncode == 0:
                return python
    raise FileNotFoundError("no interpreter that an ordinary user may run")


@dataclass
class Watch:
    """What must stay as it is."""

    folder: Path
    token: str
    sockets: list[socket.socket]
    victim: subprocess.Popen[bytes]
    port: int
    abstract: str

    @classmethod
    def start(cls, stack: ExitStack) -> Watch:
        token = secrets.token_hex(16)
        os.environ["RLVR_TEST_SECRET"] = token
        stack.callback(os.environ.pop, "RLVR_TEST_SECRET")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rlvr-watch-")))
        (folder / "secret").write_text(token)
        (folder / "canary_module.py").write_text(f"TOKEN = {token!r}")
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = tcp.getsockname()[1]
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", port))
        stream, abstract = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
        datagram, abstract_datagram = (
            stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) for _ in range(2)
        )
        stream.bind(str(folder / "stream"))
        datagram.bind(str(folder / "datagram"))
        abstract.bind("\0rlvr-" + token[:8])
        abstract_datagram.bind("\0rlvr-" + token[:8] + "d")
        for listening in (stream, abstract):
            listening.listen()
        for path in folder.iterdir():
            path.chmod(0o666)
        folder.chmod(0o777)
        sockets = [tcp, udp, stream, datagram, abstract, abstract_datagram]
        for each in sockets:
            each.setblocking(False)
        victim = subprocess.Popen(["sleep", "600"])
        stack.callback(victim.wait)
        stack.callback(victim.kill)
        return cls(folder, token, sockets, victim, port, "\0rlvr-" + token[:8])

    def fill(self, program: str) -> str:
        return program.format(
            folder=str(self.folder),
            port=self.port,
            abstract=self.abstract,
            victim=self.victim.pid,
            outside=os.getpid(),
        )

    def state(self, server: int) -> dict[str, object]:
        files = {}
        for path in [*self.folder.iterdir(), Path("/tmp/rlvr-escape"), Path("/dev/shm/rlvr-escape")]:
            if path.exists():
                stat = path.stat()
                files[str(path)] = (stat.st_mode, stat.st_uid, stat.st_size, stat.st_mtime_ns)
        limits = Path(f"/proc/{self.victim.pid}/limits").read_text() if self.victim.poll() is None else ""
        return {
            "files": files,
            "victim": (limits, os.getpriority(os.PRIO_PROCESS, self.victim.pid) if limits else None),
            "processes": descendants(server),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "sandbox folders": sorted(Path(tempfile.gettempdir()).glob("rlvr-sandbox-*/*")),
        }

    def arrivals(self) -> list[str]:
        found = []
        for each in self.sockets:
            try:
                if each.type == socket.SOCK_STREAM:
                    each.accept()[0].close()
                else:
                    each.recv(16)
            except BlockingIOError:
                continue
            found.append(str(each.getsockname()))
        return found


def run_escapes(level: str, max_processes: int, python: str, programs: Mapping[str, str] = ESCAPES) -> list[str]:
    """Violations, one line each; none of the programs may do what it tries."""
    violations = []
    options = SandboxOptions(python=python, memory_mb=512, file_mb=4, max_processes=max_processes)
    with ExitStack() as stack:
        watch = Watch.start(stack)
        sandbox = stack.enter_context(box.Sandbox(level, options))  # type: ignore[arg-type]
        sandbox.start()
        server = sandbox.pid
        before = watch.state(server)
        for name, program in programs.items():
            started = time.monotonic()
            outcome = sandbox.program(watch.fill(program), "", LIMITS)
            seconds, said = time.monotonic() - started, outcome.stdout + outcome.stderr
            after = watch.state(server)
            seen = [f"{what}: {before[what]} -> {after[what]}" for what in before if before[what] != after[what]]
            seen += [f"arrived at {place}" for place in watch.arrivals()]
            if watch.token.encode() in said or b"ESCAPED" in said:
                seen.append(f"printed {said[:200]!r}")
            if seconds > LIMITS.wall_seconds + SLACK_SECONDS:
                seen.append(f"took {seconds:.1f} s")
            if len(outcome.stdout) > options.file_mb << 20:
                seen.append(f"{len(outcome.stdout)} bytes of output")
            if sandbox.pid != server:
                seen.append("the server died")
                server, after = sandbox.pid, watch.state(sandbox.pid)
            violations += [f"{name}: {text}" for text in seen]
            before = after
        still = sandbox.program("print(sum(range(10)))", "", LIMITS)
        if still.stdout != b"45\n":
            violations.append(f"the sandbox works no more: {still}")
    return violations


def as_nobody(level: str, max_processes: int, python: str) -> list[str]:
    """`run_escapes` without privileges: in a fork of this process, whose modules may be unreadable by then."""
    with tempfile.TemporaryDirectory(prefix="rlvr-nobody-") as name:
        copy = Path(name)
        shutil.copytree(box.PACKAGE_FOLDER / "rlvr" / "verifiers", copy / "rlvr" / "verifiers")
        (copy / "rlvr" / "__init__.py").touch()
        copy.chmod(0o755)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
                os.chdir("/")
                box.PACKAGE_FOLDER = copy
                result = run_escapes(level, max_processes, python)
            except BaseException:
                result = [traceback.format_exc()]
            with os.fdopen(writing, "w") as pipe:
                json.dump(result, pipe)
            os.kill(os.getpid(), signal.SIGKILL)  # nothing of pytest may run a second time
        os.close(writing)
        with os.fdopen(reading) as pipe:
            answer = pipe.read()
        os.waitpid(pid, 0)
        return list(json.loads(answer))
