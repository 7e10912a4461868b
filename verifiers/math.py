"""Mathematical answers: the final answer is found by strict rules and compared as mathematics, not as text.

Where the answer stands: what follows the last `</think>`; there the last balanced `\\boxed{}`, whatever earlier
boxes say; without one the line after the last of `answer_marks`. The prompt's echo is not searched.

Accepted: the reference in another form. Fractions, decimals, percent, powers, roots, algebra, matrices, intervals as
inequalities, lists and sets in any order, tuples in theirs, with or without a unit or a name before it.

>>> verify = Math()
>>> verify(Case(r"so it is \\boxed{\\dfrac{3}{6}}", r"\\frac{1}{2}")).status
'correct'
>>> verify(Case(r"\\boxed{x < -1 \\text{ or } x > 2}", r"(-\\infty,-1)\\cup(2,\\infty)")).status
'correct'

Rejected: hedges (several values where one is asked, `\\ne`, words around it), other units, scale words, another
base, other brackets, an answer hidden from view or in the reasoning only, an expression copied from the question.

>>> verify(Case(r"\\boxed{42 \\text{ or } 43}", "42")).status
'wrong'
>>> verify(Case(r"<think>\\boxed{42}</think> I think so.", "42")).status
'no_answer'
>>> verify(Case(r"\\boxed{17 + 25}", "42", prompt="What is 17 + 25?")).status
'wrong'

Whose fault: a reference that is empty or has broken brackets is `unparseable_gold`, one too big to evaluate
`oversize` (it still accepts its own spelling). A response that is too long, too deep, too big or keeps sympy busy for
more than `symbolic_seconds` is `wrong`: whoever writes so has not answered. A completion cut at its limit before any
answer is `truncated`; an answer found in it is judged.

Without sympy an answer takes well under a millisecond; sympy is asked only for what this package cannot evaluate
(sums, integrals, limits), under the deadline of the worker process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, ClassVar

from pydantic import Field

from rlvr.records import Status, Verdict
from rlvr.verifiers.answers import compare, symbolic
from rlvr.verifiers.answers.extract import Thinking, empty_thought, extract, last_box
from rlvr.verifiers.answers.leaves import Leaf, spelling
from rlvr.verifiers.answers.nodes import Node
from rlvr.verifiers.answers.normalize import normalize
from rlvr.verifiers.answers.structures import readings
from rlvr.verifiers.answers.values import TooLargeError, UnreadableError
from rlvr.verifiers.base import Case, Verifier, if_late

MAX_CHARACTERS = 2000
"""Longest answer or reference that is compared."""

_PLAIN = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+|[A-Za-z]|\\[a-z]+)$")
_FRACTION = re.compile(r"[-+]?(?:\\frac)?\{?(\d+)\}?[/{]?(\d+)\}?$")


@dataclass(frozen=True)
class Math(Verifier):
    """1 when the final answer equals the reference, else 0.

    A reference is a string (LaTeX or plain, `\\boxed{}` and `####` understood), a number, or a list of alternatives.
    """

    is_outcome: ClassVar[bool] = True

    thinking: Thinking = "optional"
    """`required`: no `</think>`, no answer; `optional`: reasoning is cut off where there is any; `searched`: never."""
    answer_marks: tuple[str, ...] = ("Answer:",)
    """Where there is no box, the line after the last of these is the answer."""
    symbolic_seconds: Annotated[float, Field(gt=0)] = 2.0
    """Longest time sympy may take over one response before it counts as wrong."""

    def __call__(self, case: Case) -> Verdict:
        golds = [_read_gold(text) for text in alternatives(case.reference)]
        answer = self._answer(case)
        extracted = None if answer is None else answer[:MAX_CHARACTERS]
        if not any(gold.fault is None or (answer is not None and gold.is_spelled(answer)) for gold in golds):
            fault = golds[0] if golds else _Gold("", "unparseable_gold", "no reference")
            return Verdict(0.0, fault.fault or "error", extracted=extracted, detail=fault.detail)
        if answer is None or not answer.strip():
            status: Status = "truncated" if case.finish_reason == "length" else "no_answer"
            return Verdict(0.0, status, detail="no box or answer mark outside the reasoning")
        if len(answer) > MAX_CHARACTERS:
            return Verdict(0.0, "wrong", extracted=extracted, detail="the answer is too long")
        reason = _difference(tuple(gold.text for gold in golds), answer, self.symbolic_seconds)
        if not reason and case.prompt and _is_copied(answer, case.prompt, golds):
            reason = "copied from the question"
        return Verdict(0.0 if reason else 1.0, "wrong" if reason else "correct", extracted=extracted, detail=reason)

    def prepare(self) -> None:
        symbolic.equal(r"\sum_{k=1}^{3} k", "6")  # builds math-verify's regular expressions and the LaTeX parser

    def right_answer(self, reference: Any) -> str:
        """The reference in a box."""
        return self._boxed(next(iter(alternatives(reference)), ""))

    def wrong_answer(self, reference: Any) -> str:
        """The reference with its last whole number raised by one, or another answer where it holds none."""
        text = next(iter(alternatives(reference)), "")
        number = re.search(r"\d+(?!.*\d)", text, re.DOTALL)
        raised = "" if number is None else f"{text[: number.start()]}{int(number[0]) + 1}{text[number.end() :]}"
        return self._boxed(raised or "123456789")

    def _boxed(self, answer: str) -> str:
        return empty_thought(self.thinking) + rf"\boxed{{{answer}}}"

    def _answer(self, case: Case) -> str | None:
        response = case.response
        # A prompt that shows how to box would otherwise answer for the model that repeats it.
        if case.prompt and case.prompt in response and extract(case.prompt, "searched", self.answer_marks) is not None:
            response = response.replace(case.prompt, "")
        return extract(response, self.thinking, self.answer_marks)


@dataclass(frozen=True)
class _Gold:
    text: str
    fault: Status | None = None
    detail: str = ""
    nodes: tuple[Node, ...] = ()

    def is_spelled(self, answer: str) -> bool:
        """Whether an answer is this reference to the letter; a broken one is nobody's answer."""
        return self.fault == "oversize" and answer.strip() == self.text.strip() and len(answer) <= MAX_CHARACTERS


def alternatives(reference: Any) -> Iterable[str]:
    """The texts of a reference; several are alternatives.

    >>> list(alternatives(27.0)), list(alternatives(["1", r"so \\boxed{2}"]))
    (['27.0'], ['1', '2'])
    """
    if isinstance(reference, str):
        if r"\boxed" in reference or r"\fbox" in reference:
            return [last_box(reference) or ""]
        return [reference.rpartition("####")[2].strip()]
    if isinstance(reference, (list, tuple)):
        return [text for item in reference for text in alternatives(item)]
    if isinstance(reference, (int, float, Fraction)) and not isinstance(reference, bool):
        return [str(reference)]
    return []


@lru_cache(maxsize=4096)
def _read_gold(text: str) -> _Gold:
    if len(text) > MAX_CHARACTERS:
        return _Gold(text, "oversize", f"the reference is longer than {MAX_CHARACTERS} characters")
    try:
        nodes = tuple(readings(normalize(text)))
        for node in nodes:
            if isinstance(node, Leaf) and node.value is None and symbolic.can_handle(node.source):
                symbolic.check_size(node.source)
    except TooLargeError as error:
        return _Gold(text, "oversize", f"the reference is too large to evaluate: {error}")
    except UnreadableError as error:
        return _Gold(text, "unparseable_gold", f"the reference cannot be read: {error}")
    return _Gold(text, nodes=nodes)


@lru_cache(maxsize=16384)
def _difference(golds: tuple[str, ...], answer: str, symbolic_seconds: float) -> str:
    """Why the answer equals none of the references; empty when it equals one. Rollouts repeat answers: cached."""

    def ask_sympy(gold: str, given: str) -> bool:
        if not (symbolic.can_handle(gold) and symbolic.can_handle(given)):
            return False
        symbolic.check_size(given)
        symbolic.try_out(gold)  # what hangs here is the reference's fault, what hangs below the response's
        late = Verdict(0.0, "wrong", extracted=answer, detail=f"not found equal within {symbolic_seconds:g} s")
        if_late(symbolic_seconds, late)
        return symbolic.equal(gold, given)

    read = [_read_gold(text) for text in golds]
    if any(gold.is_spelled(answer) for gold in read):
        return ""
    try:
        given = list(readings(normalize(answer)))
        if any(compare.same(node, other, ask_sympy) for gold in read for node in gold.nodes for other in given):
            return ""
    except UnreadableError as error:
        return f"cannot be read: {error}"
    except TooLargeError as error:
        return f"too large to evaluate: {error}"
    return "not equal to the reference"


def _is_copied(answer: str, prompt: str, golds: Iterable[_Gold]) -> bool:
    """Whether an unevaluated expression stands in the question as it is and the reference is spelled otherwise."""
    compact = spelling(normalize(answer))
    if _PLAIN.match(compact) or any(spelling(normalize(gold.text)) == compact for gold in golds):
        return False
    fraction = _FRACTION.match(compact)
    if fraction is not None and Fraction(int(fraction[1]), int(fraction[2])).denominator == int(fraction[2]):
        return False
    nodes = list(readings(normalize(answer)))
    return all(isinstance(node, Leaf) and not node.is_words for node in nodes) and _compact(answer) in _compact(prompt)


def _compact(text: str) -> str:
    return re.sub(r"\s|\\[,;:! ]|\$|\\left|\\right", "", text)
