"""Runs a program against its tests. The tests stay here; only inputs go to the sandbox and only answers come back."""

from __future__ import annotations

import ast
import contextlib
import io
import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any, Protocol

from rlvr.verifiers.programs.proxies import Names, Remote, ask
from rlvr.verifiers.programs.references import Call, Stdin, Suite, UnreadableError
from rlvr.verifiers.programs.syntax import compiled, parse
from rlvr.verifiers.sandbox import codec
from rlvr.verifiers.sandbox.box import Calls, ProgramError
from rlvr.verifiers.sandbox.options import Limits, Outcome

TOLERANCE = 1e-6
"""Relative (absolute below 1) for numbers that are printed with a decimal point where one is expected."""


class Runs(Protocol):
    """A place to run programs: a fork server here, or a remote one."""

    def program(self, source: str, stdin: str, limits: Limits) -> Outcome: ...

    def calls(self, source: str, limits: Limits) -> contextlib.AbstractContextManager[Calls]: ...


@dataclass(frozen=True)
class Result:
    """What came of the tests that were run."""

    passed: int
    total: int
    failure: str
    """The first test that failed and why; empty when all passed."""


def judge(program: str, tests: Suite, runs: Runs, test_seconds: float, case_seconds: float, every: bool) -> Result:
    """Runs the tests, up to the first failure or `every` one of them.

    Args:
        test_seconds: CPU time of a test (scripts and calls share a process and so their time).
        case_seconds: wall time of all together.

    Raises:
        UnreadableError: a test script that is no Python.
        SandboxError: the sandbox failed.
    """
    outcomes = _stdin(program, tests, runs, test_seconds, case_seconds) if tests.stdin else None
    if outcomes is None:
        outcomes = _in_one_process(program, tests, runs, test_seconds, case_seconds)
    passed, failure = 0, ""
    with contextlib.closing(outcomes):
        for number, why in enumerate(outcomes, start=1):
            passed += not why
            if why and not failure:
                failure = f"test {number} of {len(tests)}: {why}"
            if why and not every:
                break
    return Result(passed, len(tests), failure)


def _stdin(
    program: str, tests: Suite, runs: Runs, test_seconds: float, case_seconds: float
) -> Generator[str, None, None]:
    deadline = time.monotonic() + case_seconds
    for test in tests.stdin:
        left = deadline - time.monotonic()
        if left <= 0:
            yield f"time limit of {case_seconds:g} s for all tests"
            return
        yield _printed(test, runs.program(program, test.input, Limits(test_seconds, left)))


def _printed(test: Stdin, outcome: Outcome) -> str:
    if not outcome.is_clean:
        return outcome.why
    printed = outcome.stdout.decode("utf-8", "replace")
    if same_output(printed, test.output):
        return ""
    return f"printed {_short(printed)}, not {_short(test.output)}"


def same_output(printed: str, expected: str) -> bool:
    """Equal token by token, wherever lines break; numbers with a decimal point within `TOLERANCE`.

    >>> same_output("1 2\\n0.3333333\\n", "1\\n2 0.333333333")
    True
    >>> same_output("1", "1 2"), same_output("1.0", "1"), same_output("10000001", "10000000")
    (False, False, False)
    """
    ours, theirs = printed.split(), expected.split()
    return len(ours) == len(theirs) and all(a == b or _close(a, b) for a, b in zip(ours, theirs, strict=True))


def _close(printed: str, expected: str) -> bool:
    if "." not in expected or len(printed) > 400:
        return False
    try:
        value, wanted = float(printed), float(expected)
    except ValueError:
        return False
    return math.isfinite(value) and math.isfinite(wanted) and abs(value - wanted) <= TOLERANCE * max(1.0, abs(wanted))


def _in_one_process(
    program: str, tests: Suite, runs: Runs, test_seconds: float, case_seconds: float
) -> Generator[str, None, None]:
    scripts = [_compiled(text) for text in (tests.setup, *tests.scripts)]
    with runs.calls(program, Limits(test_seconds, case_seconds)) as calls:
        calls.wrap = lambda number: Remote(number, calls)
        if tests.calls:
            yield from _called(tests, calls)
            return
        names = Names(calls, _defined(tests.solution))
        setup = _attempt(lambda: exec(scripts[0], names))
        for script in scripts[1:]:
            yield setup or _attempt(lambda script=script: exec(script, names))  # type: ignore[misc]


@lru_cache(maxsize=128)
def _compiled(text: str) -> CodeType:
    """Rollouts of a group share their tests: cached."""
    try:
        return compiled(text, "tests")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnreadableError(f"the tests are no Python: {error}") from error


@lru_cache(maxsize=128)
def _defined(solution: str) -> frozenset[str]:
    """Functions and classes of the data's own solution: what a program is asked for."""
    with contextlib.suppress(SyntaxError, ValueError):
        kinds = (ast.FunctionDef, ast.ClassDef)
        return frozenset(node.name for node in parse(solution).body if isinstance(node, kinds))
    return frozenset()


def _called(tests: Suite, calls: Calls) -> Generator[str, None, None]:
    try:
        function = _function(tests.function, calls)
    except (ProgramError, NameError, AttributeError) as error:
        yield from (str(error) for _ in tests.calls)
        return
    for test in tests.calls:
        yield _attempt(lambda test=test: _compare(function, test))  # type: ignore[misc]


def _function(name: str, calls: Calls) -> Any:
    """`Solution().name` where the program has that class, else the function `name`."""
    try:
        solution = ask(calls, "name", "Solution")
    except NameError:
        return ask(calls, "name", name)
    return getattr(solution(), name)


def _compare(function: Any, test: Call) -> None:
    value = function(*test.arguments)
    if _listed(value) != _listed(test.expected):
        raise AssertionError(f"returned {_short(repr(value))}, not {_short(repr(test.expected))}")


def _listed(value: Any) -> Any:
    """Tuples as lists: JSON has no tuples."""
    if isinstance(value, (list, tuple)):
        return [_listed(item) for item in value]
    return value


def _attempt(test: Callable[[], object]) -> str:
    """Why the test failed; empty when it passed. Whatever it raises is a failure: it works on what the program gave."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            test()
    except codec.UnsendableError as error:
        raise UnreadableError(f"the tests: {error}") from error
    except Exception as error:
        return f"{type(error).__name__}: {error}".rstrip(": ")[:200]
    except SystemExit:
        return "the test ended the interpreter"
    return ""


def _short(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= 40 else text[:37] + "...")
