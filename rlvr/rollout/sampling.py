"""Draws tokens from logits by inverse transform, so that a sample depends on its own random numbers alone.

Both engines draw so on the CPU. B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from rlvr.errors import ConfigError
from rlvr.rollout.engine import Request, Sampling

BLOCK = 128  # tokens whose probabilities are added up before any of them is looked at


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
        tokens = draw(logprobs, uniform)
    return tokens, logprobs


def draw(logprobs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The first token of each row at which the cumulative probability passes the uniform number.

    The block of tokens is found first, then the token in it: cumulative sums of everything take ten times as long.

    Args:
        logprobs: `[B, V]` float32; -inf is never drawn.
        uniform: `[B]` float64 numbers in [0, 1).

    Returns:
        `[B]` int64.
    """
    if missing := -logprobs.shape[-1] % BLOCK:
        logprobs = functional.pad(logprobs, (0, missing), value=-torch.inf)
    blocks = logprobs.softmax(-1).unflatten(-1, (-1, BLOCK))
    cumulative = blocks.sum(-1).double().cumsum(-1)
    passed = uniform[:, None] * cumulative[:, -1:]
    block = _first_above(cumulative, passed)
    before = functional.pad(cumulative, (1, 0)).gather(-1, block)
    chosen = blocks[torch.arange(len(blocks)), block.squeeze(-1)]
    return (block * BLOCK + _first_above(chosen.double().cumsum(-1), passed - before)).squeeze(-1)


def _first_above(cumulative: torch.Tensor, passed: torch.Tensor) -> torch.Tensor:
    """Where each row passes a value; at its end where rounding makes the value as large as all of it.

    `right` skips entries of probability 0: their cumulative value equals the one before.
    """
    most = cumulative[:, -1:]
    return torch.searchsorted(cumulative, passed.minimum(most.nextafter(torch.zeros_like(most))), right=True)


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
