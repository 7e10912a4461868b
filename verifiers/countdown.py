"""Countdown: an arithmetic expression of the given numbers that equals the target (Jiayi-Pan/Countdown-Tasks-3to4).

The reference is a mapping of `nums` (whole numbers) and `target`. The answer is what stands in the last
`<answer>...</answer>` after the reasoning, or else in the last `\\boxed{}`: whole numbers, + - * / (or × ÷ − and their
LaTeX) and round brackets, with `= target` behind it or not. It is parsed, never run, and calculated in fractions.

>>> verify = Countdown()
>>> verify(Case("<answer>(8 - 2) / (1 / 3)</answer>", {"nums": [1, 2, 3, 8], "target": 18})).reward
1.0
>>> verify(Case("<answer>3 * 6</answer>", {"nums": [1, 2, 3, 8], "target": 18})).detail
'uses 3, 6, not each of 1, 2, 3, 8 once'

Anything else inside the tags is `wrong`, as is an expression over `MAX_CHARACTERS`; a reference of another form is an
`unparseable_gold`. Linear in the length of the response.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, permutations
from typing import Any, ClassVar, Literal

from rlvr.records import Status, Verdict
from rlvr.verifiers.answers.extract import Thinking, tagged, tagged_or_boxed
from rlvr.verifiers.base import Case, Verifier

MAX_CHARACTERS = 500
"""Of an expression, spaces left out."""
MAX_SOLVED = 6
"""Numbers for which a right answer is searched for: with more there are too many expressions."""

_PLAIN = {"−": "-", "×": "*", "·": "*", r"\times": "*", r"\cdot": "*", "÷": "/", r"\div": "/"}
_PLAIN |= {r"\left": "", r"\right": "", r"\(": "", r"\)": "", "$": ""}
_EXPRESSION = re.compile(r"[\d+\-*/()]+", re.ASCII)


@dataclass(frozen=True)
class Countdown(Verifier):
    """Whether an expression of the numbers equals the target: 1 or 0."""

    is_outcome: ClassVar[bool] = True

    use: Literal["each", "any"] = "each"
    """`each` number exactly once, or `any` of them at most once."""
    thinking: Thinking = "optional"
    """`required`: no `</think>`, no answer; `optional`: reasoning is cut off where there is any; `searched`: never."""

    def __call__(self, case: Case) -> Verdict:
        problem = _problem(case.reference)
        if problem is None:
            return Verdict(0.0, "unparseable_gold", detail="the reference is no mapping of nums and target")
        numbers, target = problem
        answer = tagged_or_boxed(case.response, self.thinking)
        if answer is None:
            status: Status = "truncated" if case.finish_reason == "length" else "no_answer"
            return Verdict(0.0, status, detail="no <answer> or box outside the reasoning")
        try:
            fault = self._fault(answer, numbers, target)
        except ZeroDivisionError:
            fault = "divides by zero"
        except ValueError as error:
            fault = str(error)
        extracted = answer[:MAX_CHARACTERS]
        return Verdict(float(not fault), "wrong" if fault else "correct", extracted=extracted, detail=fault)

    def right_answer(self, reference: Any) -> str:
        """An expression found by search; where there is none, one that is wrong: the row has a defect."""
        problem = _problem(reference)
        if problem is None:
            return tagged("0", self.thinking)
        numbers, target = problem
        if len(numbers) > MAX_SOLVED:
            return ""
        return tagged(self._solution(numbers, target) or "+".join(map(str, numbers)), self.thinking)

    def wrong_answer(self, reference: Any) -> str:
        """The target out of a number that was not given."""
        numbers, target = _problem(reference) or ([0], 0)
        foreign = max(*numbers, target, 0) + 1
        return tagged(f"{foreign} - {foreign - target}", self.thinking)

    def _fault(self, answer: str, numbers: Sequence[int], target: int) -> str:
        """Why the answer is wrong; empty when it is right."""
        tree = _parsed(answer, target)
        used = Counter(_numbers(tree))
        given = Counter(numbers)
        if used != given if self.use == "each" else used - given:
            wanted = "each" if self.use == "each" else "any"
            return f"uses {_listed(used)}, not {wanted} of {_listed(given)} once"
        value = _value(tree)
        return "" if value == target else f"equals {value}, not {target}"

    def _solution(self, numbers: Sequence[int], target: int) -> str | None:
        least = len(numbers) if self.use == "each" else 1
        subsets = (subset for size in range(least, len(numbers) + 1) for subset in combinations(numbers, size))
        solutions = (_search([(Fraction(number), str(number)) for number in subset], target) for subset in subsets)
        return next(filter(None, solutions), None)


def _listed(numbers: Counter[int]) -> str:
    return ", ".join(map(str, sorted(numbers.elements())))[:100] or "nothing"


def _problem(reference: Any) -> tuple[list[int], int] | None:
    """Numbers and target."""
    if not isinstance(reference, Mapping):
        return None
    numbers, target = reference.get("nums"), reference.get("target")
    if not isinstance(numbers, list) or not numbers or not all(type(number) is int for number in numbers):
        return None
    return (numbers, target) if type(target) is int else None


def _parsed(answer: str, target: int) -> ast.expr:
    """The expression of an answer.

    Raises:
        ValueError: it is none.
    """
    text = "".join(answer.split())
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"longer than {MAX_CHARACTERS} characters")
    for spelled, plain in _PLAIN.items():
        text = text.replace(spelled, plain)
    text = text.removesuffix(f"={target}")
    if not _EXPRESSION.fullmatch(text):
        raise ValueError("not whole numbers, + - * / and brackets")
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, MemoryError, RecursionError):  # the parser's names for brackets that are too deep
        raise ValueError("not an expression") from None


def _numbers(tree: ast.expr) -> Iterator[int]:
    return (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, int))


def _value(tree: ast.expr) -> Fraction:
    """Calculates exactly.

    Raises:
        ValueError: something else than + - * / and numbers.
        ZeroDivisionError: as it says.
    """
    match tree:
        case ast.Constant(value=int(value)):
            return Fraction(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left) + _value(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _value(left) - _value(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _value(left) * _value(right)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _value(left) / _value(right)
    raise ValueError("not + - * / of numbers")


def _search(terms: Sequence[tuple[Fraction, str]], target: int) -> str | None:
    """An expression of all terms that equals the target: any two are joined, and so on with what is left."""
    if len(terms) == 1:
        return terms[0][1] if terms[0][0] == target else None
    for i, j in permutations(range(len(terms)), 2):
        (a, left), (b, right) = terms[i], terms[j]
        others = [term for k, term in enumerate(terms) if k not in (i, j)]
        joined = [(a - b, f"({left}-{right})")]
        if i < j:
            joined += [(a + b, f"({left}+{right})"), (a * b, f"({left}*{right})")]
        if b:
            joined.append((a / b, f"({left}/{right})"))
        for term in joined:
            if found := _search([*others, term], target):
                return found
    return None
