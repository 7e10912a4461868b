"""Draws tokens from logits by inverse transform, so that a sample depends on its own random numbers alone.

B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rlvr.errors import ConfigError
from rlvr.rollout.engine import Request, Sampling


def uniforms(seeds: list[int], num_tokens: int) -> torch.Tensor:
    """`[len(seeds), num_tokens]` float64 numbers in [0, 1), each row from its own generator."""
    rows = [torch.rand(num_tokens, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in seeds]
    return torch.stack(rows)


def sample(logits: torch.Tensor, uniform: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws one token a row and gives the log-probs of the distribution it was drawn from.

    Args:
        logits: `[B, V]`, any float type; the arithmetic is float32.
        uniform: `[B]` numbers in [0, 1).
        sampling: temperature and top_p; temperature 0 takes the likeliest token, its log-prob is at temperature 1.

    Returns:
        Tokens `[B]` and all log-probs `[B, V]` (float32).
    """
    logits = logits.float()
    if sampling.temperature == 0:
        logprobs = logits.log_softmax(-1)
        tokens = logprobs.argmax(-1)
    else:
        logits = logits / sampling.temperature
        if sampling.top_p < 1:
            logits = _nucleus(logits, sampling.top_p)
        logprobs = logits.log_softmax(-1)
        cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)
        # `right` skips tokens of probability 0: their cumulative value equals the one before.
        threshold = uniform[:, None] * cumulative[:, -1:]
        tokens = torch.searchsorted(cumulative, threshold, right=True).squeeze(-1)
    return tokens, logprobs


def _nucleus(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keeps the smallest set of likeliest tokens that holds at least `top_p` of the probability; -inf elsewhere."""
    ordered, order = logits.sort(dim=-1, descending=True)
    before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
    dropped = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before >= top_p)
    dropped.scatter_(-1, order[:, :1], False)
    return logits.masked_fill(dropped, float("-inf"))


def check_length(requests: Sequence[Request], sampling: Sampling, limit: int) -> None:
    """Refuses requests that would not fit the engine's context of `limit` tokens.

    Raises:
        ConfigError: naming the longest prompt; nothing is ever cut.
    """
    longest = max((len(request.token_ids) for request in requests), default=0)
    if longest + sampling.max_new_tokens > limit:
        mend = f"with a prompt of {longest} tokens it exceeds the engine's context of {limit}: lower it"
        raise ConfigError("rollout.max_new_tokens", sampling.max_new_tokens, mend)
