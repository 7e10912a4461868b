"""The trusted side: starts a fork server, hands it programs, and says what became of them."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlvr.verifiers.sandbox import codec, landlock
from rlvr.verifiers.sandbox.languages import LANGUAGES, Language
from rlvr.verifiers.sandbox.options import Level, Limits, Outcome, SandboxError, SandboxOptions
from rlvr.verifiers.sandbox.readable import interpreter_paths
from rlvr.verifiers.sandbox.server import FOLDER_PREFIX, Confinement

START_SECONDS = 60.0
GRACE_SECONDS = 10.0
"""What the server may take over a run's own limit to report."""

PACKAGE_FOLDER = Path(__file__).parents[3]
"""Where the fork server finds `rlvr`."""

_BOOT = """\
import sys
sys.path[:] = [p for p in sys.path if p]
sys.path.insert(0, sys.argv[1])
from rlvr.verifiers.sandbox.server import main
del sys.path[0]
main(int(sys.argv[2]), sys.argv[3])
"""


class Sandbox:
    """One fork server at one level; starts on first use and again after it has failed.

    One run at a time: other threads wait for it.

    Args:
        level: how it is confined; `levels.assess` finds out which the machine offers.
        options: limits and interpreter; `level` and `require` in it are not looked at.
        language: of the programs.
    """

    def __init__(self, level: Level, options: SandboxOptions, language: Language = LANGUAGES["python"]) -> None:
        self.level, self.options, self._language = level, options, language
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Raises SandboxError with what the server said."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        python = self.options.python or sys.executable
        confinement = json.dumps(self._confinement(python))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = [_BOOT, str(PACKAGE_FOLDER), str(theirs.fileno()), confinement]
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [os.path.realpath(python), "-s", "-S", "-B", "-c", *arguments],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    # The hash seed decides the order of sets: the same program, the same verdict.
                    env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"},
                    cwd="/",
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            raise SandboxError(f"sandbox.python={python}: {error.strerror}") from error
        self._control = ours
        answer = self._next(START_SECONDS)
        if "ready" not in answer:
            said = answer.get("failed") or self._last_words()
            self.close()
            raise SandboxError(said)

    @property
    def pid(self) -> int:
        """The server's process, or the one that holds its namespaces."""
        assert self._process is not None
        return self._process.pid

    def program(self, source: str, stdin: str, limits: Limits) -> Outcome:
        """Runs a script.

        Raises:
            SandboxError: it could not be run.
        """
        with self._lock, contextlib.ExitStack() as stack:
            code, given, out, err = (stack.enter_context(_memory_file()) for _ in range(4))
            code.write(source.encode("utf-8", "surrogateescape"))
            given.write(stdin.encode("utf-8", "surrogateescape"))
            code.seek(0)
            given.seek(0)
            self._request("program", limits, [file.fileno() for file in (code, given, out, err)])
            report = self._report(limits.wall_seconds)
            return _outcome(report, _content(out), _content(err, 1 << 16))

    @contextmanager
    def calls(self, source: str, limits: Limits) -> Iterator[Calls]:
        """A module whose functions can be called until the block is left.

        Raises:
            SandboxError: it could not be run.
        """
        ours, theirs = socket.socketpair()
        with self._lock, ours, _memory_file() as out, _memory_file() as err, open(os.devnull) as nothing:
            with theirs:
                streams = [theirs.fileno(), nothing.fileno(), out.fileno(), err.fileno()]
                self._request("calls", limits, streams)
            calls = Calls(ours, time.monotonic() + limits.wall_seconds)
            calls.open(source)
            try:
                yield calls
            finally:
                ours.close()
                self._send(b"stop")
                calls.outcome = _outcome(self._report(GRACE_SECONDS), b"", _content(err, 1 << 16))

    def close(self) -> None:
        """Ends the server and whatever runs in it. Safe to call twice."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is None:
            return
        try:
            self._process.wait(timeout=GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()
        for folder in glob.glob(f"{FOLDER_PREFIX}{self._process.pid}-*"):  # of a server that was killed
            shutil.rmtree(folder, ignore_errors=True)
        self._process = None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _confinement(self, python: str) -> dict[str, Any]:
        return Confinement(
            namespaces=self.level == "namespaces",
            landlock=self.level in ("namespaces", "landlock") and landlock.abi() > 0,
            seccomp=self.level != "none",
            max_processes=self.options.max_processes,
            memory_bytes=self.options.memory_mb << 20,
            file_bytes=self.options.file_mb << 20,
            readable=[*interpreter_paths(python), *self._language.readable],
            command=list(self._language.command),
            file=self._language.file,
        )._asdict()

    def _request(self, mode: str, limits: Limits, descriptors: list[int]) -> None:
        self.start()
        assert self._control is not None
        message = json.dumps({"mode": mode, **asdict(limits)}).encode()
        try:
            socket.send_fds(self._control, [message], descriptors)
        except OSError as error:
            self.close()
            raise SandboxError(f"the fork server is gone: {error}") from error

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            if self._control is not None:
                self._control.send(data)

    def _report(self, seconds: float) -> dict[str, Any]:
        report = self._next(seconds + GRACE_SECONDS)
        if "status" not in report:
            said = self._last_words()
            self.close()
            raise SandboxError(f"the fork server did not report: {said}")
        return report

    def _next(self, seconds: float) -> dict[str, Any]:
        assert self._control is not None
        self._control.settimeout(seconds)
        with contextlib.suppress(OSError):
            if data := self._control.recv(1 << 16):
                return dict(json.loads(data))
        return {}

    def _last_words(self) -> str:
        """Ends the process and returns the last line of its stderr."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.communicate(timeout=GRACE_SECONDS)[1].decode(errors="replace").strip()[-500:]
        return "no answer"


class Calls:
    """The functions of one running module, by messages (`guest`)."""

    def __init__(self, channel: socket.socket | None, deadline: float) -> None:
        self._channel, self._deadline = channel, deadline
        self.wrap: Callable[[int], Any] = codec.Opaque
        """What an object of the program becomes on this side."""
        self.outcome: Outcome | None = None
        """Known when the block of `Sandbox.calls` has been left."""
        self.fault = ""
        """Why the module answers no more."""

    def open(self, source: str) -> None:
        with contextlib.suppress(ProgramError):
            self._exchange({"source": source})

    def ask(self, do: str, target: Any, **details: Any) -> Any:
        """What `guest` answers to one request, as plain data.

        Raises:
            ProgramError: the program raised, or answers no more.
            UnsendableError: what the test hands over cannot cross.
        """
        if self.fault:
            raise ProgramError("", self.fault)
        return self._exchange({"do": do, "target": target, **details})

    def _exchange(self, message: dict[str, Any]) -> Any:
        data = codec.dumps(message, _opaque_number)
        try:
            answer = codec.loads(self._deliver(codec.frame(data)), self.wrap)
            if not isinstance(answer, dict) or not answer.keys() & {"value", "raised"}:
                raise ValueError("neither a value nor an exception")
            if "value" in answer:
                return answer["value"]
            kind, text = map(str, answer["raised"])
        except TimeoutError:
            self.fault = "time limit"
        except ConnectionError:
            self.fault = "the program ended before it answered"
        except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError, MemoryError) as error:
            self.fault = f"no valid answer: {type(error).__name__}: {error}"[:200]
        else:
            if "source" in message:
                self.fault = f"{kind}: {text}"[:200]
            raise ProgramError(kind, text)
        raise ProgramError("", self.fault)

    def _deliver(self, frame: bytes) -> bytes:
        """The answer to a message; raises TimeoutError, ConnectionError or ValueError."""
        assert self._channel is not None
        self._channel.settimeout(max(0.001, self._deadline - time.monotonic()))
        self._channel.sendall(frame)
        size = int(self._read(codec.HEADER_BYTES), 16)
        if not 0 <= size <= codec.MAX_BYTES:
            raise ValueError("the answer is too long")
        return self._read(size)

    def _read(self, size: int) -> bytes:
        assert self._channel is not None
        chunks = bytearray()
        while len(chunks) < size:
            self._channel.settimeout(max(0.001, self._deadline - time.monotonic()))
            chunk = self._channel.recv(min(size - len(chunks), 1 << 20))
            if not chunk:
                raise ConnectionResetError
            chunks += chunk
        return bytes(chunks)


class ProgramError(Exception):
    """A request to the program under test that gave no value."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}" if kind else text)
        self.kind, self.text = kind, text


def _opaque_number(value: Any) -> int:
    if isinstance(value, codec.Opaque):
        return value.number
    raise codec.UnsendableError(f"{type(value).__name__} cannot be handed to the program")


@contextmanager
def _memory_file() -> Iterator[Any]:
    with os.fdopen(os.memfd_create("rlvr", os.MFD_CLOEXEC), "w+b", buffering=0) as file:
        yield file


def _content(file: Any, last: int | None = None) -> bytes:
    size = os.fstat(file.fileno()).st_size
    start = 0 if last is None else max(0, size - last)
    return os.pread(file.fileno(), size - start, start)


def _outcome(report: dict[str, Any], stdout: bytes, stderr: bytes) -> Outcome:
    status, seconds, ended = report["status"], report["seconds"], report["ended"]
    if ended != "exit":
        return Outcome(ended, 0, stdout, stderr, seconds)
    code = os.waitstatus_to_exitcode(status)
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return Outcome("cpu" if code == -signal.SIGXCPU else "signal", -code, stdout, stderr, seconds)
    return Outcome("signal" if code < 0 else "exit", abs(code), stdout, stderr, seconds)
