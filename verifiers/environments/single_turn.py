"""Single-turn environments of the package `verifiers` (https://github.com/PrimeIntellect-ai/verifiers), below 0.4.

An environment is spelled `NAME`, or `NAME?key=value&key=value` with arguments of its `load_environment`; values are
JSON where they parse as such, else text.

>>> spelled("wordle-lite?level=3&kind=easy")
('wordle-lite', {'level': 3, 'kind': 'easy'})
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import inspect
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

MEND = "install Prime Intellect's verifiers: pip install 'rlvr[prime-intellect]'"
SPLITS = ("train", "test")
# Counts turns, which are one here: it says nothing about the completion.
_NO_PART = "num_turns"


class Score(NamedTuple):
    """What a rubric gives one completion."""

    reward: float
    """The weighted sum of the parts."""
    parts: dict[str, float]
    """Name of each reward function -> what it returned, unweighted."""
    fault: str
    """What went wrong in the environment; empty when nothing did."""


class SingleTurn:
    """A loaded environment.

    Args:
        environment: as the module says.

    Raises:
        ValueError: the package or the environment is not installed or does not load, or it is none that scores single
            completions of one turn.
    """

    def __init__(self, environment: str) -> None:
        name, arguments = spelled(environment)
        self._faults: list[str] = []
        package = _package()
        with _own_signal_handlers():
            try:
                self._environment = package.load_environment(name, **arguments)
            # Somebody else's code: whatever it raises means that it cannot be used.
            except Exception as error:
                raise ValueError(f"{name} does not load: {_reason(error)}") from error
        kind = type(self._environment).__name__
        if not isinstance(self._environment, package.SingleTurnEnv) or self._environment.tool_defs:
            raise ValueError(f"{name} is a {kind}: only single-turn environments without tools can be used")
        if self._environment.requires_group_rollouts:
            raise ValueError(f"{name} scores the completions of a group together: only one at a time can be judged")
        self._record_faults(self._environment.rubric)

    def rows(self, split: str) -> list[dict[str, Any]]:
        """Inputs of rollouts as plain data: `prompt` (messages) with `answer`, `info` and the data's other columns.

        Raises:
            ValueError: no such split, or data that does not load.
        """
        if split not in SPLITS:
            raise ValueError(f"there is no split {split!r}; there are train and test (its evaluation data)")
        environment = self._environment
        try:
            table = environment.build_dataset() if split == "train" else environment.build_eval_dataset()
        except Exception as error:
            raise ValueError(f"its data does not load: {_reason(error)}") from error
        if table is None:
            other = "test" if split == "train" else "train"
            raise ValueError(f"it has no data for the split {split}; there is {other}")
        return [json.loads(json.dumps(row, default=str)) for row in table]

    def score(self, row: Mapping[str, Any], response: str, is_truncated: bool) -> Score:
        """Runs the environment's own rollout on a row, with `response` as the policy's turn, and then its rubric."""
        self._faults.clear()
        state = asyncio.run(self._judged(row, response, is_truncated))
        if state.get("error") is not None:
            self._faults.append(_reason(state["error"]))
        parts = {name: float(value) for name, value in (state.get("metrics") or {}).items() if name != _NO_PART}
        return Score(float(state.get("reward") or 0.0), parts, "; ".join(self._faults))

    async def _judged(self, row: Mapping[str, Any], response: str, is_truncated: bool) -> Any:
        environment = self._environment
        state = await environment.rollout(deepcopy(dict(row)), _client(response, is_truncated), "policy")
        if state.get("error") is None:
            await environment.rubric.score_rollout(state)
        await environment.rubric.cleanup(state)
        return state

    def _record_faults(self, rubric: Any) -> None:
        """Rubrics log what their functions raise and go on with 0, which would be a wrong answer."""
        rubric.funcs = [self._recording(function) for function in rubric.funcs]
        for part in getattr(rubric, "rubrics", ()):
            self._record_faults(part)

    def _recording(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def recording(*args: Any, **kwargs: Any) -> float:
            try:
                result = function(*args, **kwargs)
                return float(await result if inspect.isawaitable(result) else result)
            except Exception as error:
                self._faults.append(f"{function.__name__}: {_reason(error)}")
                raise

        return recording


def spelled(environment: str) -> tuple[str, dict[str, Any]]:
    """Name and arguments."""
    name, _, query = environment.partition("?")
    return name, {key: _value(text) for key, text in parse_qsl(query, keep_blank_values=True)}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _reason(error: BaseException) -> str:
    causes = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    return "; ".join(dict.fromkeys(f"{type(cause).__name__}: {cause}".rstrip(": ") for cause in causes))[:500]


def _package() -> ModuleType:
    """The package `verifiers`; beside a checkout of this project, its folder of the same name stands before it.

    Raises:
        ValueError: it is not installed, or a version without `load_environment`.
    """
    os.environ.setdefault("VF_LOG_LEVEL", "ERROR")
    checkout = Path(__file__).resolve().parents[2]
    if "verifiers" not in sys.modules:
        spec = PathFinder.find_spec("verifiers", [path for path in sys.path if Path(path).resolve() != checkout])
        if spec is None or spec.loader is None:
            raise ValueError(MEND)
        module = sys.modules["verifiers"] = module_from_spec(spec)
        spec.loader.exec_module(module)
    package = sys.modules["verifiers"]
    if not hasattr(package, "load_environment"):
        found = getattr(package, "__version__", "unknown")
        raise ValueError(f"{MEND}; version {found} lacks load_environment or what it needs")
    return package


@contextlib.contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Environments install handlers of their own for the signals that end a process."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _client(response: str, is_truncated: bool) -> Any:
    """A model that says `response`, as the package's clients are."""
    base = importlib.import_module("verifiers.clients").Client
    types = importlib.import_module("verifiers.types")

    async def get_response(*args: Any, **kwargs: Any) -> Any:
        message = types.ResponseMessage(
            content=response, finish_reason="length" if is_truncated else "stop", is_truncated=is_truncated
        )
        return types.Response(id="", created=0, model="policy", message=message)

    # Only `get_response` is called; the rest of the interface talks to servers.
    members = dict.fromkeys(base.__abstractmethods__)
    return type("Said", (base,), {**members, "get_response": get_response})(None)
