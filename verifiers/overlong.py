"""DAPO's soft overlong punishment: a penalty that grows over the last `cache_tokens` before the length limit.

With Lmax = max_tokens and Lc = cache_tokens, a completion of |y| tokens (end of sequence included) gets

    0                        |y| <= Lmax - Lc
    (Lmax - Lc - |y|) / Lc   Lmax - Lc < |y| <= Lmax
    -1                       Lmax < |y|

(Yu et al. 2025, arXiv 2503.14476, equation 13). With Lc = 0 the penalty is 0 or -1. It shapes the reward only:
whether the answer is right is another verifier's to say.

Accepted, and rejected by half:

>>> verify = Overlong(max_tokens=100, cache_tokens=20)
>>> verify(Case("...", None, num_tokens=80)).reward, verify(Case("...", None, num_tokens=90)).reward
(0.0, -0.5)

Constant time; a case that does not say its number of tokens is an `error`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from rlvr.records import Verdict
from rlvr.verifiers.base import Case, Verifier


@dataclass(frozen=True)
class Overlong(Verifier):
    """Penalty in [-1, 0] by the number of generated tokens."""

    is_outcome: ClassVar[bool] = False

    max_tokens: Annotated[int, Field(gt=0)] = 20480
    """Length from which the penalty is whole; set it to `rollout.max_new_tokens`. DAPO: 20480."""
    cache_tokens: Annotated[int, Field(ge=0)] | None = None
    """Length over which it grows from 0; unset: a fifth of `max_tokens`. DAPO: 4096."""

    def __post_init__(self) -> None:
        if self.cache_tokens is not None and self.cache_tokens > self.max_tokens:
            raise ValueError(f"cache_tokens={self.cache_tokens} must not exceed max_tokens={self.max_tokens}")

    def __call__(self, case: Case) -> Verdict:
        if case.num_tokens < 1:
            return Verdict(0.0, "error", detail="the case does not say its number of tokens (num_tokens)")
        cache_tokens = self.max_tokens // 5 if self.cache_tokens is None else self.cache_tokens
        penalty = overlong_penalty(case.num_tokens, self.max_tokens, cache_tokens)
        return Verdict(penalty, "correct" if penalty == 0 else "wrong", detail="" if penalty == 0 else "overlong")


def overlong_penalty(num_tokens: int, max_tokens: int, cache_tokens: int) -> float:
    """The formula above; a completion of no tokens has no penalty."""
    free = max_tokens - cache_tokens
    if num_tokens <= free:
        return 0.0
    if num_tokens <= max_tokens:
        return (free - num_tokens) / cache_tokens
    return -1.0
