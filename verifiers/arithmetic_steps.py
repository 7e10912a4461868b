"""Process rewards on worked arithmetic: every `7+5=12` of the reasoning is a step that ends there.

A step is an equation that begins with a calculation on numbers (+ - * / ^ and brackets), before `</think>` where there
is one. It earns 1 when its sides are exactly equal and, where the question holds numbers, what it calculates with
stands there or came out of an earlier step, whole or as one digit. The same step earns again only as often as its
numbers do so, else writing `1+1=2` all over would pay.

>>> verify = ArithmeticSteps()
>>> verify(Case("<think>7+5=12,3+4+1=9</think>82", None, prompt="37+45")).step_rewards
[(13, 1.0), (21, 0.0)]
>>> verify(Case("<think>7+5=12, 7+5=12, 1+6=7</think>82", None, prompt="37+45")).step_rewards
[(13, 1.0), (21, 0.0), (28, 0.0)]

The reward is the share of right steps, 0 without any; whether the answer is right is another verifier's to say.
Linear in the length of the response; never a fault.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from rlvr.records import Verdict
from rlvr.verifiers.answers.expressions import evaluate
from rlvr.verifiers.answers.values import TooLargeError, UnreadableError
from rlvr.verifiers.base import Case, Verifier

MAX_CHARACTERS = 200
"""A longer step is wrong."""

# Possessive throughout: an expression is consumed whole, step or not, and so the scan is linear.
_NUMBER = r"(?:\d{1,3}(?:,\d{3}(?!\d))++|\d++)(?:\.\d++)?+"
_OPERAND = rf"\({{0,4}}+[-−]?+(?:\\?\$)?+{_NUMBER}\){{0,4}}+"
_OPERATOR = r"\s*+(?:[-−+*/×·÷^]|\\times|\\cdot|\\div)\s*+"
_SIDE = rf"{_OPERAND}(?:{_OPERATOR}{_OPERAND})*+"
_ALGEBRA = rf"(?<=[A-Za-z)}}\]])(?P<algebra>{_OPERATOR})"  # x + 5 = 8 calculates nothing
_ARITHMETIC = re.compile(rf"(?:{_ALGEBRA}|(?<![\w.]))(?:{_SIDE})(?:\s*+=\s*+{_SIDE})*+")
_PLAIN = {"−": "-", "×": "*", "·": "*", r"\times": "*", r"\cdot": "*", "÷": "/", r"\div": "/"}
_NUMERAL = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True)
class ArithmeticSteps(Verifier):
    """A reward of 1 or 0 at the end of each step (process supervision: DeepSeekMath, arXiv 2402.03300, 4.1.3)."""

    is_outcome: ClassVar[bool] = False
    rewards_steps: ClassVar[bool] = True

    grounded: bool = True
    """A step may only calculate with numbers of the question and of earlier steps, or with their digits."""

    def __call__(self, case: Case) -> Verdict:
        known = _numbers(case.prompt)
        is_grounded = self.grounded and bool(known)
        written: Counter[str] = Counter()
        steps: list[tuple[int, float]] = []
        for match in _ARITHMETIC.finditer(case.response.partition("</think>")[0]):
            step = _plain(match[0])
            calculation, equals, _ = step.partition("=")
            if match["algebra"] or not equals or calculation.lstrip("(-").rstrip(")").replace(".", "").isdecimal():
                continue
            times = min(known[number] for number in _numbers(calculation)) if is_grounded else 1
            steps.append((match.end(), float(written[step] < times and _holds(step))))
            if not written[step]:
                known += _numbers(step.rpartition("=")[2])
            written[step] += 1
        num_right = int(sum(reward for _, reward in steps))
        share = num_right / len(steps) if steps else 0.0
        detail = f"{num_right} of {len(steps)} steps are right"
        return Verdict(share, "correct" if share == 1 else "wrong", step_rewards=steps, detail=detail)


def _plain(text: str) -> str:
    """Without spaces, currency and thousands separators, and with ASCII operators."""
    for spelled, plain in _PLAIN.items():
        text = text.replace(spelled, plain)
    text = re.sub(r"[\s$\\,]", "", text)
    is_enclosed = text.startswith("(") and text.endswith(")") and text.count("(") == 1
    return text[1:-1] if is_enclosed else text


def _numbers(text: str) -> Counter[str]:
    """How often each number stands in a text, whole or as one digit of another."""
    numerals = _NUMERAL.findall(text.replace(",", ""))
    return Counter([*numerals, *(digit for numeral in numerals if len(numeral) > 1 for digit in numeral)])


def _holds(step: str) -> bool:
    """Whether all sides are equal."""
    if len(step) > MAX_CHARACTERS:
        return False
    try:
        values = {evaluate(side).exact for side in step.split("=")}
    except (UnreadableError, TooLargeError):
        return False
    return len(values) == 1 and None not in values
