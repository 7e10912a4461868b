"""Reward functions of other trainers, from a Python file: TRL's signature and verl's `compute_score`.

    def reward(completions, answer, **kwargs) -> list[float | None]                      TRL: has `completions`
    def compute_score(data_source, solution_str, ground_truth, extra_info=None) -> float | dict     verl: `solution_str`

Each call gets one completion: TRL's lists hold one entry, its keyword arguments are the row's columns, the reference is
that called `answer`. A dictionary of verl's gives its `score`, other numbers in it become parts. The function runs in
the verifiers' worker processes, which is no sandbox: it is trusted code.

>>> from tempfile import NamedTemporaryFile
>>> file = NamedTemporaryFile("w", suffix=".py")
>>> _ = file.write("def short(completions, limit=5, **columns): return [float(len(c) <= limit) for c in completions]")
>>> file.flush()
>>> verify = Python(path=f"{file.name}:short")
>>> verify(Case("brief", None)).reward, verify(Case("too long", None)).reward
(1.0, 0.0)

A missing file or function, or another signature, is refused when the options are checked, without running the file.
A function that raises, or returns no finite number, is an `error`; None (TRL: not applicable) counts as 0.
"""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rlvr.records import Verdict
from rlvr.verifiers.base import Case, Verifier

_SIGNATURES = "its arguments must be TRL's (completions, ...) or verl's (data_source, solution_str, ground_truth, ...)"


@dataclass(frozen=True)
class Python(Verifier):
    """What a function of the user's gives."""

    path: str
    """File and function, as `my_rewards.py:reward`."""
    answer: str = "answer"
    """Argument under which a function of TRL's form gets the reference; other columns keep their names."""
    conversational: bool = False
    """A function of TRL's form gets messages [{role, content}] for prompts and completions, not text."""
    outcome: bool = True
    """Whether it says if the completion is right; if not, it only shapes the reward."""
    correct_from: float = 1.0
    """Reward from which a completion counts as right in pass rates."""

    def __post_init__(self) -> None:
        file, name = _split(self.path)
        if not file.is_file():
            raise ValueError(f"there is no file {file}; write path=FILE.py:FUNCTION")
        try:
            names = _argument_names(ast.parse(file.read_bytes(), str(file)), name)
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"{file}: {error}") from None
        if names is not None:
            _check_signature(self.path, names)

    @property
    def is_outcome(self) -> bool:  # type: ignore[override]
        return self.outcome

    def __call__(self, case: Case) -> Verdict:
        try:
            function, is_verls = _load(self.path)
            score, parts = _verls(function, case) if is_verls else (self._trls(function, case), {})
        except Exception as error:
            return Verdict(0.0, "error", detail=f"{self.path}: {type(error).__name__}: {error}"[:500])
        if score is None:
            return Verdict(0.0, "wrong", parts, detail="the function gave None")
        return Verdict(score, "correct" if score >= self.correct_from else "wrong", parts)

    def prepare(self) -> None:
        _load(self.path)

    def _trls(self, function: Callable[..., Any], case: Case) -> float | None:
        columns = {**case.extra, self.answer: case.reference}
        values = {
            **{name: [value] for name, value in columns.items()},
            "prompts": [[{"role": "user", "content": case.prompt}] if self.conversational else case.prompt],
            "completions": [
                [{"role": "assistant", "content": case.response}] if self.conversational else case.response
            ],
            "trainer_state": None,
        }
        (reward,) = _call(function, values)
        return None if reward is None else _number(reward)


def _verls(function: Callable[..., Any], case: Case) -> tuple[float, dict[str, float]]:
    values = {
        "data_source": str(case.extra.get("data_source", "")),
        "solution_str": case.response,
        "ground_truth": case.reference,
        "extra_info": dict(case.extra),
    }
    result = _call(function, values)
    if not isinstance(result, Mapping):
        return _number(result), {}
    if "score" not in result:
        raise ValueError(f"the dictionary has no 'score': {result!r:.80}")
    others = {name: value for name, value in result.items() if name != "score" and isinstance(value, (int, float))}
    return _number(result["score"]), {str(name): float(value) for name, value in others.items()}


def _call(function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Calls with those of the values that the function takes."""
    parameters = inspect.signature(function).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    result = function(**{name: value for name, value in values.items() if takes_all or name in parameters})
    return asyncio.run(result) if inspect.iscoroutine(result) else result


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is no reward")
    return number


def _split(path: str) -> tuple[Path, str]:
    file, _, name = path.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise ValueError(f"path={path!r} must name a file and a function in it, as my_rewards.py:reward")
    return Path(file).expanduser(), name


def _argument_names(module: ast.Module, name: str) -> set[str] | None:
    """Of a function defined at the file's top; None when the name is bound in another way.

    Raises:
        ValueError: nothing of this name.
    """
    functions = {
        node.name: node.args for node in module.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    if name in functions:
        arguments = functions[name]
        return {argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    nodes = list(ast.walk(module))
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
    if name in bound:
        return None
    raise ValueError(f"there is no function {name} in it; there is {', '.join(functions) or 'none at all'}")


def _check_signature(path: str, names: Iterable[str]) -> bool:
    """Whether the form is verl's.

    Raises:
        ValueError: neither form.
    """
    names = set(names)
    if "completion_ids" in names:
        raise ValueError(f"{path}: verifiers judge text; there are no completion_ids to give")
    if {"solution_str", "ground_truth"} <= names:
        return True
    if "completions" not in names:
        raise ValueError(f"{path}: {_SIGNATURES}, not ({', '.join(sorted(names))})")
    return False


@lru_cache(maxsize=8)
def _load(path: str) -> tuple[Callable[..., Any], bool]:
    """The function, and whether its form is verl's."""
    file, name = _split(path)
    spec = importlib.util.spec_from_file_location(f"rlvr_user_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.resolve().parent))  # for its neighbours
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    function = getattr(module, name)
    return function, _check_signature(path, inspect.signature(function).parameters)
