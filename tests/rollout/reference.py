"""The plain forward that both engines are held against."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

MAX_PROMPT_TOKENS = 200
MAX_NEW_TOKENS = 48


def forward_logprobs(model: PreTrainedModel, token_ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """`[len(token_ids) - 1, V]`: a plain transformers forward."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0, :-1]
    return (logits.double() / temperature).log_softmax(-1)
