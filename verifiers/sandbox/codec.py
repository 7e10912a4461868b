"""Values that cross between a program under test and its tests: typed JSON, rebuilt as plain builtins.

Nothing of the program's own (classes, `__eq__`, code) comes across: objects that are none of the types below stay where
they are and are named by a number (`Opaque`). JSON's own null, true, false, string, list, float and small integer stand
for themselves; every other type is an object with one key:

    {"t": [..]} tuple    {"d": [[k, v]..]} dict    {"s": [..]} set      {"f": [..]} frozenset    {"q": [..]} deque
    {"i": "0x.."} int    {"c": [re, im]} complex   {"b": "hex"} bytes   {"r": [a, b, c]} range   {"n": ".."} Decimal
    {"y": "int"} a builtin type    {"o": 7} opaque
"""

from __future__ import annotations

import builtins
import json
from collections import deque
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

MAX_BYTES = 16 << 20
"""Longest message."""

HEADER_BYTES = 8
"""Length of the message in hexadecimal: frames are ASCII throughout, so that they survive a text channel."""

_PLAIN = {type(None), bool, float, str}
_SMALL = 1 << 53
_LONGEST_RANGE = 1_000_000
_LARGEST_EXPONENT = 10_000
_SEQUENCES: tuple[tuple[str, Callable[[Iterable[Any]], Any]], ...] = (
    ("t", tuple),
    ("s", set),
    ("f", frozenset),
    ("q", deque),
)


class Opaque:
    """An object that lives in the program under test; equal to itself alone."""

    def __init__(self, number: int) -> None:
        self.number = number


class UnsendableError(TypeError):
    """A value that a test hands to the program and that cannot cross: the test's fault."""


def dumps(value: Any, opaque: Callable[[Any], int]) -> bytes:
    """Raises RecursionError for what is nested too deeply, and what `opaque` raises."""
    return json.dumps(_encode(value, opaque)).encode("ascii")


def loads(data: bytes, resolve: Callable[[int], Any]) -> Any:
    """Raises ValueError, TypeError or RecursionError for what is no value."""
    return _decode(json.loads(data), resolve)


def frame(data: bytes) -> bytes:
    """The message with its length in front."""
    return b"%08x" % len(data) + data


def _encode(value: Any, opaque: Callable[[Any], int]) -> Any:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        return int(value) if -_SMALL < value < _SMALL else {"i": hex(value)}
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list):
        kinds = set(map(type, value))
        if kinds <= _PLAIN or (kinds == {int} and -_SMALL < min(value) <= max(value) < _SMALL):
            return value  # long lists are mostly of this kind
        return [_encode(item, opaque) for item in value]
    if isinstance(value, dict):
        return {"d": [[_encode(key, opaque), _encode(item, opaque)] for key, item in value.items()]}
    for tag, kind in _SEQUENCES:
        if isinstance(value, kind):  # type: ignore[arg-type]
            return {tag: [_encode(item, opaque) for item in value]}
    return _encode_rare(value, opaque)


def _encode_rare(value: Any, opaque: Callable[[Any], int]) -> Any:
    if isinstance(value, complex):
        return {"c": [value.real, value.imag]}
    if isinstance(value, (bytes, bytearray)):
        return {"b": value.hex()}
    if isinstance(value, range):
        return {"r": [_encode(part, opaque) for part in (value.start, value.stop, value.step)]}
    if isinstance(value, Decimal):
        return {"n": str(value)}
    if isinstance(value, type):
        name = value.__name__
        if getattr(builtins, name, None) is value:
            return {"y": name}
    return {"o": opaque(value)}


def _decode(value: Any, resolve: Callable[[int], Any]) -> Any:
    if isinstance(value, list):
        if not set(map(type, value)) & {list, dict}:
            return value
        return [_decode(item, resolve) for item in value]
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    if tag == "d":
        return {_decode(key, resolve): _decode(item, resolve) for key, item in content}
    for name, kind in _SEQUENCES:
        if tag == name:
            return kind(_decode(item, resolve) for item in content)
    if tag == "o":
        return resolve(int(content))
    return _RARE[tag](content, resolve)


_RARE: dict[str, Callable[[Any, Callable[[int], Any]], Any]] = {
    "i": lambda content, resolve: int(content, 16),
    "c": lambda content, resolve: complex(*content),
    "b": lambda content, resolve: bytes.fromhex(content),
    "r": lambda content, resolve: _range([_decode(part, resolve) for part in content]),
    "n": lambda content, resolve: _decimal(content),
    "y": lambda content, resolve: _builtin_type(content),
}


def _range(parts: list[int]) -> range:
    found = range(*parts)
    if len(found) > _LONGEST_RANGE:  # a few bytes that would fill the memory of whoever makes a list of them
        raise ValueError("the range is too long")
    return found


def _decimal(text: str) -> Decimal:
    found = Decimal(text)
    if found.is_finite() and abs(found.adjusted()) > _LARGEST_EXPONENT:
        raise ValueError("the number is too large")
    return found


def _builtin_type(name: str) -> type:
    found = getattr(builtins, name, None)
    if not isinstance(found, type):
        raise ValueError(f"{name!r} is no builtin type")
    return found
