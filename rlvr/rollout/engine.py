"""The protocol both rollout engines meet, and the seeds that make their samples repeatable."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rlvr.records import Completion

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Sampling:
    """How to sample. Log-probs are always those of the distribution that was sampled from."""

    max_new_tokens: int
    temperature: float = 1.0
    """0 is greedy decoding; log-probs are then those at temperature 1."""
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    """Besides the tokenizer's end-of-sequence token."""
    topk: int = 0
    """Likeliest tokens (at most the vocabulary) reported with their log-probs at each position."""
    ignore_eos: bool = False
    """Whether the end-of-sequence token is a token as any other."""

    def ends(self, eos: int) -> list[int]:
        """The tokens that end a completion, where `eos` is the tokenizer's end-of-sequence token."""
        return [*self.stop_token_ids] if self.ignore_eos else [eos, *self.stop_token_ids]


@dataclass(frozen=True)
class Request:
    """One prompt and the seeds of the samples wanted from it."""

    token_ids: list[int]
    seeds: list[int]
    """One per sample; the number of samples is its length."""


class RolloutEngine(Protocol):
    """Samples completions; holds its own copy of the weights (or shares the policy's)."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, list[Completion]]]:
        """Yields (index of the request, its completions in the order of its seeds) as each prompt finishes.

        Every request is yielded exactly once; the order is the order of finishing, so that scoring overlaps.
        """
        ...

    def logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-prob at temperature 1 of each token given those before it; `len(sequence) - 1` values a sequence."""
        ...

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Replaces the weights in place by `(Hugging Face name, tensor)` pairs, each copied before the next is asked.

        An engine with adapters takes those alone, named as in `rlvr.lora`; its other weights never change.
        Completions sampled afterwards carry `version`. Caches filled under the old weights are dropped.
        """
        ...

    def sleep(self) -> None:
        """Frees memory (cache, on a GPU weights) while the policy trains; a no-op where nothing is shared."""
        ...

    def wake(self) -> None:
        """Takes the memory back; the weights are undefined until `load_weights`."""
        ...

    def close(self) -> None:
        """Ends the engine and every process it started. Safe to call twice."""
        ...


def sample_seed(run_seed: int, step: int, prompt_id: str, sample: int) -> int:
    """A 63-bit seed for one sample, the same in an uninterrupted and in a resumed run."""
    key = f"{run_seed}/{step}/{prompt_id}/{sample}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 1
