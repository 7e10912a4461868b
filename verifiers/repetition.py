"""Repetition penalty: the share of n-grams that were there before, for responses that run in circles.

    penalty = max_penalty * (1 - distinct n-grams / n-grams)

over the words and signs of the response: the form of open-r1's repetition penalty, after the one per token by which
Yeo et al. 2025 (arXiv 2502.03373) stopped a length reward from being earned by repetition. A response shorter than n
has no penalty.

>>> Repetition(ngram=2)(Case("I think so and I say no", None)).reward
0.0
>>> Repetition(ngram=2)(Case("so it is so it is so it is", None)).reward
-0.625

Linear in the length of the response; never a fault.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from rlvr.records import Verdict
from rlvr.verifiers.base import Case, Verifier

# A word, or one character of a script that puts no spaces between words.
_TOKEN = re.compile(r"[぀-ヿ㐀-鿿฀-๿]|[^\W぀-ヿ㐀-鿿฀-๿]+|[^\w\s]")


@dataclass(frozen=True)
class Repetition(Verifier):
    """Penalty in [-max_penalty, 0] by the share of repeated n-grams."""

    is_outcome: ClassVar[bool] = False

    ngram: Annotated[int, Field(gt=0)] = 20
    """Words (or characters of Chinese, Japanese and Thai, or signs) a repeated passage must have."""
    free_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of repeated n-grams that costs nothing."""
    max_penalty: Annotated[float, Field(gt=0)] = 1.0
    """Penalty when nothing is new."""

    def __call__(self, case: Case) -> Verdict:
        share = repeated_share(_TOKEN.findall(case.response.casefold()), self.ngram)
        if share <= self.free_share:
            return Verdict(0.0, "correct")
        return Verdict(-self.max_penalty * share, "wrong", detail=f"{share:.1%} of the {self.ngram}-grams repeat")


def repeated_share(tokens: list[str], ngram: int) -> float:
    """Share of n-grams that equal an earlier one; 0 when there are fewer than `ngram` tokens."""
    total = len(tokens) - ngram + 1
    if total < 1:
        return 0.0
    return 1 - len({tuple(tokens[i : i + ngram]) for i in range(total)}) / total
