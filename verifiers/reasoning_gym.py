"""The scorers of reasoning-gym: every data set of it brings its own rule (https://github.com/open-thought/reasoning-gym).

The reference is a whole entry of reasoning-gym {question, answer, metadata}; the answer is what stands in the last
`<answer>...</answer>` after the reasoning, or else in the last `\\boxed{}`. The reward is the scorer's, in [0, 1]; some
give part of it for a form that is right, so only 1 counts as correct. An optional extra:
pip install 'rlvr[reasoning-gym]'.

An entry without a known data set, and a scorer that fails on its own reference, are an `unparseable_gold`; one that
fails on the answer alone makes it `wrong`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

from rlvr.records import Status, Verdict
from rlvr.verifiers.answers.extract import Thinking, tagged, tagged_or_boxed
from rlvr.verifiers.base import Case, Verifier


@dataclass(frozen=True)
class ReasoningGym(Verifier):
    """What the entry's own scorer gives for the answer."""

    is_outcome: ClassVar[bool] = True

    thinking: Thinking = "optional"
    """`required`: no `</think>`, no answer; `optional`: reasoning is cut off where there is any; `searched`: never."""

    def __call__(self, case: Case) -> Verdict:
        answer = tagged_or_boxed(case.response, self.thinking)
        if answer is None:
            status: Status = "truncated" if case.finish_reason == "length" else "no_answer"
            return Verdict(0.0, status, detail="no <answer> or box outside the reasoning")
        try:
            reward = _score(answer, case.reference)
        except Exception as error:
            detail = f"{type(error).__name__}: {error}"[:300]
            return Verdict(0.0, "wrong" if _scores_itself(case.reference) else "unparseable_gold", detail=detail)
        return Verdict(reward, "correct" if reward == 1 else "wrong", extracted=answer)

    def prepare(self) -> None:
        """Imports reasoning-gym.

        Raises:
            ImportError: it is not installed.
        """
        if find_spec("reasoning_gym") is None:
            raise ImportError("reasoning-gym is not installed: pip install 'rlvr[reasoning-gym]'")
        import reasoning_gym  # noqa: F401

    def right_answer(self, reference: Any) -> str:
        """The entry's answer."""
        return tagged(str(reference["answer"]), self.thinking)

    def wrong_answer(self, reference: Any) -> str:
        """What is no answer to anything."""
        return tagged("no answer at all", self.thinking)


def _score(answer: str, entry: Any) -> float:
    from reasoning_gym import get_score_answer_fn

    return float(get_score_answer_fn(entry["metadata"]["source_dataset"])(answer, entry))


def _scores_itself(entry: Any) -> bool:
    try:
        return isinstance(entry, Mapping) and _score(str(entry["answer"]), entry) == 1
    except Exception:
        return False
