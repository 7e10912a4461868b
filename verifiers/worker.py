"""The process side of `rlvr.scoring`: forks children that judge one case at a time; never imports torch.

The parent process of the children imports what the verifiers need once, then forks a child for every socket it is
sent, so that a killed child is replaced within milliseconds. Messages on a child's socket are JSON with a length in
front:

    child -> caller   {"pid": ...}                          once
    caller -> child   {"response": ..., "reference": ...}   a case
    child -> caller   {"late": verdict, "seconds": ...}     any number of times: the verdict if no answer comes
    child -> caller   {"verdict": ...}
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import resource
import signal
import socket
import struct
import sys
from typing import Any, NoReturn, Protocol

from rlvr.records import Verdict
from rlvr.verifiers.base import Case, listening
from rlvr.verifiers.registry import build

MEMORY_BYTES = 4 << 30
"""Address space of a child; a verifier that wants more fails with a MemoryError."""

_PR_SET_PDEATHSIG = 1


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    # ASCII: lone surrogates of the model's text travel as escapes.
    data = json.dumps(message).encode("ascii")
    connection.sendall(struct.pack("!Q", len(data)) + data)


def receive(connection: socket.socket) -> dict[str, Any] | None:
    """The next message; None when the other side is gone."""
    header = _read(connection, 8)
    if header is None:
        return None
    data = _read(connection, struct.unpack("!Q", header)[0])
    return None if data is None else json.loads(data)


def _read(connection: socket.socket, size: int) -> bytes | None:
    chunks = bytearray()
    while len(chunks) < size:
        chunk = connection.recv(min(size - len(chunks), 1 << 20))
        if not chunk:
            return None
        chunks += chunk
    return bytes(chunks)


class Judge(Protocol):
    """A verifier or several as one."""

    def __call__(self, case: Case) -> Verdict: ...


def serve(connection: socket.socket, verifier: Judge) -> None:
    """Judges cases until the caller hangs up or a case goes wrong: a fresh child is cheaper than a doubtful one."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    send(connection, {"pid": os.getpid()})
    late: list[Verdict] = []

    def announce(seconds: float, verdict: Verdict) -> None:
        late.append(verdict)
        send(connection, {"late": dataclasses.asdict(verdict), "seconds": seconds})

    while (message := receive(connection)) is not None:
        late.clear()
        try:
            with listening(announce):
                verdict = verifier(Case(**message))
        # Untrusted text reached the verifier, so anything may come: the case gets a verdict, the next a new child.
        except BaseException as error:
            verdict = late[-1] if late else Verdict(0.0, "error", detail=f"{type(error).__name__}: {error}"[:500])
            send(connection, {"verdict": dataclasses.asdict(verdict)})
            return
        send(connection, {"verdict": dataclasses.asdict(verdict)})


def main(argv: list[str]) -> None:
    """Args: the number of the inherited control socket, and the verifiers' options as JSON."""
    control = socket.socket(fileno=int(argv[0]))
    verifier = build(json.loads(argv[1]))
    verifier.prepare()
    parent, children = os.getpid(), set[int]()

    def reap(*_: object) -> None:
        while children and (pid := os.waitpid(-1, os.WNOHANG)[0]):
            children.discard(pid)

    signal.signal(signal.SIGCHLD, reap)
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:  # the caller is gone or has had enough
            break
        # A child must be in the set before its end is told.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if pid == 0:
            _be_child(control, descriptors[0], verifier, parent)
        children.add(pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        os.close(descriptors[0])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        os.waitpid(pid, 0)


def _be_child(control: socket.socket, descriptor: int, verifier: Judge, parent: int) -> NoReturn:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    control.close()
    try:
        if os.getppid() == parent:
            serve(socket.socket(fileno=descriptor), verifier)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
