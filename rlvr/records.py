"""The records that flow round the loop, free of torch: Prompt, Completion, Verdict, Rollout, Group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


Message = dict[str, str]  # {"role": "user", "content": "..."}

FinishReason = Literal["stop", "length"]

Status = Literal[
    "correct",
    "wrong",
    "no_answer",
    "truncated",
    "unparseable_gold",
    "oversize",
    "timeout",
    "error",
]

# The verifier's or the data's fault, never the policy's: such a row leaves its group and all statistics.
FAULTS: frozenset[Status] = frozenset({"unparseable_gold", "oversize", "timeout", "error"})


@dataclass(frozen=True)
class Prompt:
    """One problem, rendered once by the chat template and tokenised once."""

    id: str
    """Stable hash of the source and the row's content."""
    text: str
    """What the model reads, after the chat template."""
    token_ids: list[int]
    reference: Any
    """Reference answer, tests or constraints, as the verifier expects them."""
    source: str
    """Name of the data set the row came from."""
    question: str = ""
    """The problem as the data set states it, before system prompt and template."""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Completion:
    """One sample of the policy."""

    token_ids: list[int]
    """Sampled tokens, the end-of-sequence token included when one was sampled."""
    logprobs: list[float]
    """The sampler's log-prob of each token, at the sampling temperature; same length as `token_ids`."""
    text: str
    """Decoded without special tokens."""
    finish_reason: FinishReason
    policy_version: int
    """Version of the weights that sampled it; -1 when the engine still holds the weights it loaded itself."""
    topk_ids: NDArray[np.int32] | None = field(default=None, compare=False)
    """[tokens, K]: the likeliest tokens at each position; None when they were not asked for."""
    topk_logprobs: NDArray[np.float32] | None = field(default=None, compare=False)
    """[tokens, K]: their log-probs under the distribution that was sampled from."""


@dataclass(frozen=True)
class Verdict:
    """What a verifier says of one completion."""

    reward: float
    status: Status
    parts: dict[str, float] = field(default_factory=dict)
    """Name of each reward part -> its unweighted value."""
    extracted: str | None = None
    """The answer that was found and compared."""
    step_rewards: list[tuple[int, float]] = field(default_factory=list)
    """Process rewards in the order of the text: (offset just past the step's last character, reward). One at the very
    end of the text belongs to the completion's last token."""
    detail: str = ""
    """Why, in one line, for whoever reads the rollout."""

    @property
    def is_fault(self) -> bool:
        """True when the row must leave its group instead of counting as wrong."""
        return self.status in FAULTS

    @property
    def is_correct(self) -> bool:
        """The outcome that pass rates count; shaping never changes it."""
        return self.status == "correct"


@dataclass(frozen=True)
class Rollout:
    """A scored completion."""

    completion: Completion
    verdict: Verdict


@dataclass(frozen=True)
class Group:
    """All rollouts of one prompt."""

    prompt: Prompt
    rollouts: list[Rollout]
