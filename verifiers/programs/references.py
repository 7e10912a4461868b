"""Reads the tests of the data sets that people train on, as their columns hold them.

| shape | columns of the reference |
|---|---|
| HumanEval, HumanEval+ | `test` (defines `check`), `entry_point`, `prompt`, `canonical_solution` |
| MBPP | `test_list`, `test_setup_code` or `test_imports`, `code` |
| MBPP+ | `test` (a script), `test_imports`, `code` |
| CodeContests | `private_tests`, `public_tests`, `generated_tests`: {input: [..], output: [..]} |
| LiveCodeBench | `public_test_cases`, `private_test_cases`: [{input, output, testtype}], `starter_code`, `metadata` |
| APPS, TACO, PRIME | `inputs`, `outputs`, `fn_name`; also as JSON in `input_output` |

A list of texts holds assert statements, a single text is a script of them. JSON in a text is understood everywhere.
`solution`, `code`, `solutions` or `canonical_solution` is a right answer, where there is one.
"""

from __future__ import annotations

import ast
import base64
import json
import pickletools
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlvr.verifiers.programs.syntax import parse

PRELUDE = (
    "from typing import *\nfrom collections import *\nfrom itertools import *\nfrom functools import *\n"
    "from heapq import *\nfrom bisect import *\nimport math, string, re, sys, random, operator\nfrom math import *\n"
)
"""What LeetCode has imported for everyone."""


class UnreadableError(ValueError):
    """A reference without tests that can be understood."""


@dataclass(frozen=True)
class Stdin:
    """A run of the whole program."""

    input: str
    output: str


@dataclass(frozen=True)
class Call:
    """One call of the function."""

    arguments: list[Any]
    expected: Any


@dataclass(frozen=True)
class Suite:
    """What a program must do; one of `stdin`, `calls` and `scripts` is not empty."""

    stdin: list[Stdin] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    """Assert statements, one test each; run one after another with the same names."""
    setup: str = ""
    """Runs before the first script, outside the program, which only sees the calls that it makes."""
    function: str = ""
    """What `calls` call; a method of `Solution` where the program defines that class."""
    prelude: str = ""
    """Put before the program."""
    stub: str = ""
    """A program whose body a response may continue (HumanEval's prompt)."""
    solution: str = ""
    """A right answer; empty where the data has none."""

    def __len__(self) -> int:
        return len(self.stdin) + len(self.calls) + len(self.scripts)


def read_tests(reference: Any) -> Suite:
    """Raises UnreadableError."""
    try:
        tests = _read(_parsed(reference))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UnreadableError(f"{type(error).__name__}: {error}"[:200]) from error
    if not len(tests) or (tests.scripts and not any("assert" in script for script in tests.scripts)):
        raise UnreadableError("there is no test in it")
    return tests


def _read(reference: Any) -> Suite:
    if isinstance(reference, str):
        return Suite(scripts=[reference])
    if isinstance(reference, list):
        return Suite(scripts=[_text(item) for item in reference])
    if not isinstance(reference, Mapping):
        raise UnreadableError(f"{type(reference).__name__} holds no tests")
    row = {name: _parsed(value) for name, value in reference.items() if value is not None}
    if "input_output" in row:
        row = {**row, **row["input_output"]}
    if "entry_point" in row:
        return _humaneval(row)
    if "test" in row or "test_list" in row:
        return _mbpp(row)
    if "public_test_cases" in row or "private_test_cases" in row:
        return _livecodebench(row)
    if "inputs" in row:
        return _apps(row)
    return _code_contests(row)


def _humaneval(row: Mapping[str, Any]) -> Suite:
    name, prompt = _text(row["entry_point"]), _text(row.get("prompt", ""))
    prelude = _before_function(prompt, name)
    solution = row.get("canonical_solution")
    return Suite(
        scripts=[f"{_text(row['test'])}\ncheck({name})\n"],
        setup=prelude,
        prelude=prelude,
        stub=prompt,
        solution=prompt + _text(solution) if solution is not None else _solution(row),
    )


def _before_function(prompt: str, name: str) -> str:
    """Imports and helpers of a prompt that ends in the head of a function."""
    for node in parse(prompt).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            lines = prompt.splitlines(keepends=True)
            return "".join(lines[: min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1])
    return ""


def _mbpp(row: Mapping[str, Any]) -> Suite:
    imports = "\n".join(_text(line) for line in row.get("test_imports") or [])
    setup = f"{_text(row.get('test_setup_code') or '')}\n{imports}".replace("\r\n", "\n").strip()
    scripts = [_text(row["test"])] if row.get("test") else [_text(test) for test in row["test_list"]]
    return Suite(scripts=scripts, setup=setup, solution=_solution(row))


def _code_contests(row: Mapping[str, Any]) -> Suite:
    kinds = [row[kind] for kind in ("public_tests", "private_tests", "generated_tests") if row.get(kind)]
    pairs = [pair for kind in kinds for pair in zip(kind["input"], kind["output"], strict=True)]
    return Suite(stdin=[Stdin(_text(given), _text(output)) for given, output in pairs], solution=_solution(row))


def _apps(row: Mapping[str, Any]) -> Suite:
    pairs = list(zip(row["inputs"], row["outputs"], strict=True))
    if not row.get("fn_name"):
        stdin = [Stdin(_joined(given), _joined(output)) for given, output in pairs]
        return Suite(stdin=stdin, solution=_solution(row))
    calls = [Call(list(given), output[0] if isinstance(output, list) and output else output) for given, output in pairs]
    return Suite(calls=calls, function=_text(row["fn_name"]), prelude=PRELUDE, solution=_solution(row))


def _livecodebench(row: Mapping[str, Any]) -> Suite:
    cases = [case for kind in ("public_test_cases", "private_test_cases") for case in _cases(row.get(kind) or [])]
    if all(case["testtype"] == "stdin" for case in cases):
        stdin = [Stdin(_text(case["input"]), _text(case["output"])) for case in cases]
        return Suite(stdin=stdin, prelude=PRELUDE, solution=_solution(row))
    calls = [
        Call([json.loads(line) for line in case["input"].split("\n") if line.strip()], json.loads(case["output"]))
        for case in cases
    ]
    metadata = row.get("metadata") or {}
    name = metadata.get("func_name") or _first_method(_text(row["starter_code"]))
    return Suite(calls=calls, function=name, prelude=PRELUDE, solution=_solution(row))


def _cases(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, str):  # the hub packs the private ones: base64 of zlib of a pickle of one JSON string
        packed = zlib.decompress(base64.b64decode(value))
        value = json.loads(next(text for text in _strings_of_pickle(packed)))
    return list(value)


def _strings_of_pickle(data: bytes) -> Iterator[str]:
    """Without running it: a pickle may hold any code."""
    for operation, argument, _ in pickletools.genops(data):
        if "UNICODE" in operation.name and isinstance(argument, str):
            yield argument


def _first_method(starter_code: str) -> str:
    for node in ast.walk(parse(starter_code.rstrip() + " pass")):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
            return node.name
    raise UnreadableError("starter_code defines no function")


def _solution(row: Mapping[str, Any]) -> str:
    found = row.get("solution") or row.get("code") or row.get("solutions") or ""
    if isinstance(found, Mapping):  # CodeContests: {language: [..], solution: [..]}, 3 is Python 3
        pairs = zip(found["language"], found["solution"], strict=True)
        found = next((text for language, text in pairs if language in (3, "PYTHON3")), "")
    if isinstance(found, list):
        found = found[0] if found else ""
    return _text(found)


def _parsed(value: Any) -> Any:
    """The content of a text that is a JSON list or object; anything else as it is."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _joined(value: Any) -> str:
    return "\n".join(map(_text, value)) if isinstance(value, list) else _text(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise UnreadableError(f"{type(value).__name__} where text is meant")
    return value
