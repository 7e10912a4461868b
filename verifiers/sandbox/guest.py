"""What runs inside a confined process: a whole program, or a program whose functions are called from outside.

Nothing here is trusted: the program under test shares this memory and may change all of it. All it can do with that is
send other answers than its own functions would have given, without knowing what is expected.
"""

from __future__ import annotations

import builtins
import os
import sys
import traceback
from types import ModuleType
from typing import Any, NoReturn

from rlvr.verifiers.sandbox import codec

FILE_NAME = "solution.py"


def run_program(file: int) -> NoReturn:
    """Runs the source in `file` as a script on descriptors 0, 1 and 2, and ends the process with its exit status."""
    _open_standard_streams()
    with os.fdopen(file, encoding="utf-8", errors="surrogateescape", newline="") as text:
        source = text.read()
    _end(_execute(source))


def start_command(file: int, name: str, command: list[str]) -> NoReturn:
    """Writes the source in `file` to the folder and becomes the command that runs it."""
    with os.fdopen(file, "rb") as source, open(name, "wb") as target:
        target.write(source.read())
    os.execv(command[0], command)


def serve_calls(channel: int) -> NoReturn:
    """Runs the source that comes first as a module, then does what `channel` asks until it is closed."""
    _open_standard_streams()
    stream = os.fdopen(channel, "r+b", buffering=0)
    _end(_serve(stream, stream))


def serve_standard_streams() -> NoReturn:
    """The same over descriptors 0 and 1, which the program itself then finds empty."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    _open_standard_streams()
    _end(_serve(requests, answers))


def _serve(requests: Any, answers: Any) -> int:
    """The exit status."""
    objects: list[Any] = []
    namespace = _module("solution")
    opening = _receive(requests, objects) or {"source": ""}
    try:
        exec(compile(opening["source"], FILE_NAME, "exec", dont_inherit=True), namespace)
    except BaseException as error:
        _send(answers, objects, _raised(error))
        return 1
    _send(answers, objects, {"value": None})
    while (message := _receive(requests, objects)) is not None:
        try:
            answer = {"value": _perform(namespace, **message)}
        except BaseException as error:
            answer = _raised(error)
        try:
            _send(answers, objects, answer)
        except (RecursionError, ValueError, AttributeError, TypeError) as error:
            _send(answers, objects, _raised(error))
    return 0


def _perform(namespace: dict[str, Any], do: str, target: Any, **details: Any) -> Any:
    if do == "name":
        return namespace[target]
    if do == "call":
        return target(*details["arguments"], **details["keywords"])
    if do == "attribute":
        return getattr(target, details["name"])
    if do == "set":
        return setattr(target, details["name"], details["value"])
    if do == "items":
        return list(target)
    if do == "item":
        return target[details["key"]]
    raise ValueError(f"unknown request {do!r}")


def _raised(error: BaseException) -> dict[str, Any]:
    return {"raised": [type(error).__name__, str(error)[:500]]}


def _send(stream: Any, objects: list[Any], answer: dict[str, Any]) -> None:
    def number(value: Any) -> int:
        objects.append(value)
        return len(objects) - 1

    data = codec.dumps(answer, number)
    if len(data) > codec.MAX_BYTES:
        data = codec.dumps(_raised(ValueError("the value is too large")), number)
    view = memoryview(codec.frame(data))
    while view:
        view = view[stream.write(view) :]


def _receive(stream: Any, objects: list[Any]) -> dict[str, Any] | None:
    header = _read(stream, codec.HEADER_BYTES)
    data = header and _read(stream, int(header, 16))
    return codec.loads(data, objects.__getitem__) if data else None


def _read(stream: Any, size: int) -> bytes | None:
    chunks = bytearray()
    while len(chunks) < size:
        chunk = stream.read(size - len(chunks))
        if not chunk:
            return None
        chunks += chunk
    return bytes(chunks)


def _module(name: str) -> dict[str, Any]:
    """The names of a fresh module, registered as dataclasses, pickles and typing expect it."""
    module = ModuleType(name)
    module.__dict__.update(__builtins__=builtins, __file__=FILE_NAME)
    sys.modules[name] = module
    return module.__dict__


def _execute(source: str) -> int:
    """The exit status."""
    try:
        exec(compile(source, FILE_NAME, "exec", dont_inherit=True), _module("__main__"))
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
    except SystemExit as leave:
        if leave.code is None or isinstance(leave.code, int):
            return leave.code or 0
        print(leave.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc(limit=-4)
        return 1
    return 0


def _open_standard_streams() -> None:
    """Fresh buffers: those of the fork server know another file."""
    sys.argv = [FILE_NAME]
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


def _end(status: int) -> NoReturn:
    """Flushes and leaves without the interpreter's own tidying, which takes longer than most programs."""
    try:
        if "atexit" in sys.modules:
            sys.modules["atexit"]._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        status = status or 1
    os._exit(status & 0xFF)
