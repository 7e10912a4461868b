"""Programs judged by tests: what they print, what their functions return, or assert statements about them.

The program is the last fenced block outside the reasoning (`programs.extract`); the tests are read from the columns of
HumanEval, MBPP, their plus versions, CodeContests, LiveCodeBench and APPS as they are (`programs.references`).

>>> verify = Code()
>>> reference = {"test_list": ["assert double(2) == 4", "assert double(-1) == -2"]}
>>> verify(Case("```python\\ndef double(x):\\n    return 2 * x\\n```", reference)).status
'correct'
>>> verdict = verify(Case("```python\\ndef double(x):\\n    return x * x\\n```", reference))
>>> verdict.status, verdict.detail
('wrong', 'test 2 of 2: AssertionError')

The program runs in a sandbox, the tests outside of it: it sees the arguments of a call and gives back plain data, which
is compared here. Expected values, later tests and the comparison never reach it, so that leaving early, printing
"passed", redefining `assert` or returning objects that equal everything earn nothing.

>>> verify(Case("```python\\nimport os\\nos._exit(0)\\n```", reference)).detail
'test 1 of 2: ProgramError: the program ended before it answered'

A program that fails, hangs, floods or forks is `wrong`, without code the response is `no_answer` or `truncated`; tests
that cannot be read are `unparseable_gold`, and only a sandbox that fails is an `error`. Tests are the data's own code:
they run with the rights of this process.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rlvr.errors import ConfigError
from rlvr.records import Status, Verdict
from rlvr.verifiers.answers.extract import Thinking, empty_thought
from rlvr.verifiers.base import Case, Verifier, if_late
from rlvr.verifiers.programs.extract import MAX_CHARACTERS, find_program
from rlvr.verifiers.programs.judging import judge
from rlvr.verifiers.programs.references import Suite, UnreadableError, read_tests
from rlvr.verifiers.programs.syntax import parse
from rlvr.verifiers.sandbox import levels, remote, runners
from rlvr.verifiers.sandbox.languages import LANGUAGES
from rlvr.verifiers.sandbox.options import SandboxError, SandboxOptions


@dataclass(frozen=True)
class Code(Verifier):
    """1 when every test passes, else 0; or the share of tests that pass."""

    is_outcome: ClassVar[bool] = True
    time_option: ClassVar[str | None] = "case_seconds"

    reward: Literal["all", "fraction"] = "all"
    """`all`: every test must pass, the first failure ends the case; `fraction`: the share of tests that pass."""
    language: Literal["python", "bash"] = "python"
    """What the programs are written in (`sandbox/languages.py`); functions are called in Python alone."""
    thinking: Thinking = "optional"
    """`required`: no `</think>`, no answer; `optional`: reasoning is cut off where there is any; `searched`: never."""
    test_seconds: Annotated[float, Field(gt=0)] = 4.0
    """CPU time of one run; scripts and calls of a case share one."""
    case_seconds: Annotated[float, Field(gt=0)] = 8.0
    """Wall time of all tests of a response; must be below `scoring.deadline_seconds`."""
    sandbox: SandboxOptions = field(default_factory=SandboxOptions)

    def __call__(self, case: Case) -> Verdict:
        try:
            tests = read_tests(case.reference)
        except UnreadableError as error:
            return Verdict(0.0, "unparseable_gold", detail=f"the reference cannot be read: {error}")
        if not tests.stdin and not LANGUAGES[self.language].has_calls:
            return Verdict(
                0.0, "unparseable_gold", detail=f"the tests call functions; language={self.language} has none"
            )
        found = find_program(case.response, self.thinking, LANGUAGES[self.language].tags)
        if found is None or not found.strip():
            status: Status = "truncated" if case.finish_reason == "length" else "no_answer"
            return Verdict(0.0, status, detail="no block of code outside the reasoning")
        extracted = found[:MAX_CHARACTERS]
        if len(found) > MAX_CHARACTERS:
            return Verdict(0.0, "wrong", extracted=extracted, detail="the program is too long")
        try:
            runs = runners.open_runs(self.language, self.sandbox)
            late = f"tests not done within {self.case_seconds:g} s"
            if_late(self.case_seconds + 1.0, Verdict(0.0, "wrong", extracted=extracted, detail=late))
            program = _whole(found, tests) if self.language == "python" else found
            result = judge(program, tests, runs, self.test_seconds, self.case_seconds, self.reward == "fraction")
        except SandboxError as error:
            return Verdict(0.0, "error", extracted=extracted, detail=f"sandbox: {error}")
        except UnreadableError as error:
            return Verdict(0.0, "unparseable_gold", extracted=extracted, detail=str(error))
        right = result.passed == result.total
        reward = float(right) if self.reward == "all" else result.passed / result.total
        return Verdict(reward, "correct" if right else "wrong", extracted=extracted, detail=result.failure)

    def prepare(self) -> None:
        import numpy  # noqa: F401 - the tests of HumanEval+ and MBPP+ compare with it

        runners.prepare(self.sandbox)

    def check_machine(self) -> None:
        if self.sandbox.remote is not None:
            if unreachable := remote.unreachable(self.sandbox.remote):
                raise ConfigError("verifier.code.sandbox.remote", self.sandbox.remote, unreachable)
        elif missing := levels.shortfall(self.sandbox):
            raise ConfigError("verifier.code.sandbox.require", self.sandbox.require, missing)

    def right_answer(self, reference: Any) -> str:
        """The data's own solution in a block; empty where it has none."""
        try:
            solution = read_tests(reference).solution
        except UnreadableError:
            return self._block("pass")  # its verdict says what is wrong with the reference
        return self._block(solution) if solution else ""

    def wrong_answer(self, reference: Any) -> str:
        """The same program with functions that answer nothing; one that prints nothing where prints are tested."""
        try:
            tests = read_tests(reference)
            return self._block("pass" if tests.stdin or not tests.solution else _emptied(tests.solution))
        except (UnreadableError, SyntaxError):
            return self._block("pass")

    def _block(self, program: str) -> str:
        return f"{empty_thought(self.thinking)}```{self.language}\n{program}\n```"


def _whole(program: str, tests: Suite) -> str:
    """The program as it is run: after the imports it may rely on, or as the rest of the prompt's own code."""
    if tests.stub and re.match(r"[ \t]", program):
        return tests.stub + program
    future = re.match(r"(?:\s*from __future__ import [^\n]*\n)*", program)
    start = future.end() if future else 0
    return f"{program[:start]}{tests.prelude}{program[start:]}"


def _emptied(solution: str) -> str:
    """The program with functions that all answer nothing."""
    tree = parse(solution)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [ast.Return(ast.Constant(None))]
    return ast.unparse(ast.fix_missing_locations(tree))
