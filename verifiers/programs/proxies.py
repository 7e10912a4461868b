"""The program under test as its tests see it: names that call into the sandbox and give back plain data."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Iterator
from typing import Any

from rlvr.verifiers.sandbox import codec
from rlvr.verifiers.sandbox.box import Calls, ProgramError


class Remote(codec.Opaque):
    """A function, class or instance of the program. What it does is its own; what it equals is decided here.

    Equal to itself alone and always true: an object that the program made has no say in a comparison.
    """

    def __init__(self, number: int, calls: Calls) -> None:
        object.__setattr__(self, "number", number)
        object.__setattr__(self, "_calls", calls)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return ask(self._calls, "call", self, arguments=list(arguments), keywords=keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # protocols (numpy's, copy's) are looked up here, not in the program
            raise AttributeError(name)
        return ask(self._calls, "attribute", self, name=name)

    def __setattr__(self, name: str, value: Any) -> None:
        ask(self._calls, "set", self, name=name, value=value)

    def __iter__(self) -> Iterator[Any]:
        return iter(ask(self._calls, "items", self))

    def __getitem__(self, key: Any) -> Any:
        return ask(self._calls, "item", self, key=key)


class Names(dict[str, Any]):
    """Globals of a test script; what neither it nor Python defines is the program's.

    Args:
        tested: names that the program is asked to define, builtin ones among them.
    """

    def __init__(self, calls: Calls, tested: Collection[str]) -> None:
        super().__init__(__name__="tests", __builtins__=builtins)
        self._calls, self._tested = calls, tested

    def __missing__(self, name: str) -> Any:
        # A program that redefines `set` or `abs` unasked does so for itself alone.
        if hasattr(builtins, name) and name not in self._tested:
            raise KeyError(name)
        value = self[name] = ask(self._calls, "name", name)
        return value


def ask(calls: Calls, do: str, target: Any, **details: Any) -> Any:
    """One request; an exception of the program is raised here as the builtin one of that name.

    Raises:
        ProgramError: the program is gone, or raised what is no builtin exception.
    """
    try:
        return calls.ask(do, target, **details)
    except ProgramError as error:
        kind = getattr(builtins, error.kind, None) if error.kind else None
        if do == "name" and kind is KeyError:
            raise NameError(f"the program does not define {target!r}") from None
        if isinstance(kind, type) and issubclass(kind, Exception):
            raise kind(error.text) from None
        raise
