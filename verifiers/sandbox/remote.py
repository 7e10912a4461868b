"""Runs programs on a SandboxFusion server (https://github.com/bytedance/SandboxFusion), by its `POST /run_code`.

What the transport or the server gets wrong (no connection, HTTP errors, status SandboxError) is tried again and is then
no fault of the program. One request is one process, so functions are called by replay: each call sends the program with
all calls so far, and the last answer counts. Expected values stay here as they do with a local sandbox.
"""

from __future__ import annotations

import inspect
import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rlvr.verifiers.sandbox import codec, guest
from rlvr.verifiers.sandbox.box import Calls
from rlvr.verifiers.sandbox.options import Limits, Outcome, SandboxError, SandboxOptions

GRACE_SECONDS = 10.0
"""What a server may take over the program's own limit."""

_REPLAY = """
import sys, types
for name, source in {modules!r}:
    module = types.ModuleType(name)
    sys.modules[name] = module
    package, _, last = name.rpartition(".")
    if package:
        setattr(sys.modules[package], last, module)
    exec(source, module.__dict__)
sys.modules["rlvr.verifiers.sandbox.guest"].serve_standard_streams()
"""


class SandboxFusion:
    """The interface of `box.Sandbox` over HTTP.

    Args:
        language: its name there.
    """

    def __init__(self, options: SandboxOptions, language: str) -> None:
        assert options.remote is not None
        self._address = options.remote.rstrip("/") + "/run_code"
        self._options, self._language = options, language

    def program(self, source: str, stdin: str, limits: Limits) -> Outcome:
        """Runs a script.

        Raises:
            SandboxError: no answer after all attempts.
        """
        reply = self._post(
            {
                "code": source,
                "stdin": stdin,
                "language": self._language,
                "compile_timeout": limits.wall_seconds,
                "run_timeout": min(limits.cpu_seconds, limits.wall_seconds),
                "memory_limit_MB": self._options.memory_mb,
                "files": {},
                "fetch_files": [],
            },
            limits.wall_seconds + GRACE_SECONDS,
        )
        result = reply.get("run_result") or reply.get("compile_result") or {}
        stdout, stderr = (str(result.get(name) or "").encode("utf-8", "replace") for name in ("stdout", "stderr"))
        seconds = float(result.get("execution_time") or 0.0)
        if result.get("status") == "TimeLimitExceeded":
            return Outcome("wall", 0, stdout, stderr, seconds)
        code = result.get("return_code")
        is_done = reply.get("status") == "Success" and result.get("status") == "Finished"
        return Outcome("exit", int(code or 0) if is_done else int(code or 1), stdout, stderr, seconds)

    @contextmanager
    def calls(self, source: str, limits: Limits) -> Iterator[Calls]:
        """A module whose functions can be called. Raises SandboxError."""
        calls = _Replayed(self, limits)
        calls.open(source)
        yield calls

    def _post(self, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        request = urllib.request.Request(
            self._address, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        why = ""
        for attempt in range(self._options.remote_retries + 1):
            if attempt:
                time.sleep(min(0.1 * 2**attempt, 2.0))
            try:
                with urllib.request.urlopen(request, timeout=seconds) as response:
                    reply = json.load(response)
            except (OSError, ValueError) as error:
                why = str(error)
                continue
            if isinstance(reply, dict) and reply.get("status") in ("Success", "Failed"):
                return reply
            why = f"status {reply.get('status') if isinstance(reply, dict) else reply!r:.80}"
        raise SandboxError(f"{self._address}: {why}")


class _Replayed(Calls):
    """Calls whose every answer is the last of a fresh run of all of them."""

    def __init__(self, server: SandboxFusion, limits: Limits) -> None:
        super().__init__(None, time.monotonic() + limits.wall_seconds)
        self._server, self._limits, self._frames = server, limits, list[bytes]()

    def _deliver(self, frame: bytes) -> bytes:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._frames.append(frame)
        outcome = self._server.program(
            replay_program(), b"".join(self._frames).decode("ascii"), Limits(self._limits.cpu_seconds, left)
        )
        answers = list(_split(outcome.stdout))
        if len(answers) >= len(self._frames):
            return answers[len(self._frames) - 1]
        raise TimeoutError if outcome.ended == "wall" else ConnectionError


def replay_program() -> str:
    """The guest as one script that reads requests from its standard input and writes answers to its output."""
    packages = [(name, "") for name in ("rlvr", "rlvr.verifiers", "rlvr.verifiers.sandbox")]
    modules = [(module.__name__, inspect.getsource(module)) for module in (codec, guest)]
    return _REPLAY.format(modules=packages + modules)


def unreachable(address: str) -> str:
    """Why no program can be run there; empty when one was."""
    server = SandboxFusion(SandboxOptions(remote=address, remote_retries=0), "python")
    try:
        outcome = server.program("print(6 * 7)", "", Limits(10, 10))
    except SandboxError as error:
        return f"no SandboxFusion server answers: {error}; start one, or take it out to run programs here"
    return "" if outcome.stdout.strip() == b"42" else f"a trial program did not run: {outcome.why or outcome.stdout!r}"


def _split(data: bytes) -> Iterator[bytes]:
    """Whole frames; raises ValueError for what is none."""
    position = 0
    while position + codec.HEADER_BYTES <= len(data):
        size = int(data[position : position + codec.HEADER_BYTES], 16)
        position += codec.HEADER_BYTES + size
        if size < 0 or position > len(data):
            return
        yield data[position - size : position]
