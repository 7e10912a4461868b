"""The reasoning format of DeepSeek-R1: `<think>` reasoning `</think>`, then the answer.

Accepted: each tag once, in order, nothing before the first, something after the second.

>>> verify = Format()
>>> verify(Case("<think>2 and 2</think>\\nIt is 4.", None)).reward
1.0

Rejected: a missing, repeated or misplaced tag, an empty answer, text before the reasoning.

>>> verify(Case("<think>2 and 2</think>", None)).reward
0.0
>>> Format(boxed=True)(Case("<think>2 and 2</think> It is 4.", None)).detail
'no \\\\boxed{} in the answer'

Linear in the length of the response; never a fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlvr.records import Verdict
from rlvr.verifiers.answers.extract import last_box
from rlvr.verifiers.base import Case, Verifier


@dataclass(frozen=True)
class Format(Verifier):
    """1 when the response keeps to the format, else 0 (DeepSeek-R1, arXiv 2501.12948, section 2.2.2)."""

    is_outcome: ClassVar[bool] = False

    boxed: bool = False
    """The answer must hold a non-empty `\\boxed{}` as well."""
    opened_by_prompt: bool = False
    """The chat template already ends with `<think>`, so the response must not open it again."""

    def __call__(self, case: Case) -> Verdict:
        flaw = self._flaw(case.response)
        return Verdict(0.0 if flaw else 1.0, "wrong" if flaw else "correct", detail=flaw)

    def _flaw(self, response: str) -> str:
        if response.count("<think>") != (0 if self.opened_by_prompt else 1):
            return "not exactly one <think>"
        if response.count("</think>") != 1:
            return "not exactly one </think>"
        reasoning, _, answer = response.partition("</think>")
        before, opening, _ = reasoning.partition("<think>")
        if not self.opened_by_prompt and (not opening or before.strip()):
            return "the response does not begin with <think>"
        if not answer.strip():
            return "no answer after </think>"
        if self.boxed and not (last_box(answer) or "").strip():
            return r"no \boxed{} in the answer"
        return ""
