"""Objectives as compositions of small pure functions on tensors: no model, no configuration object, any trainer.

objective = build({"advantage": {"baseline": "leave_one_out", "scale": "none"}, "aggregate": "token_mean"})
batch, metrics = objective.prepare(batch)  # the whole rollout batch: filters, advantages
weights = objective.weights(minibatch)  # one optimizer step: every normaliser, known before the first forward
loss, metrics = objective.loss(policy_logprobs, microbatch, weights[tokens])  # sums over any split of the minibatch
objective.after_update(metrics, batch.num_rows)  # once the batch's steps are done: controllers, warm-up

Shape legend: N rows (completions), T tokens of all rows end to end, prompts included, L tokens of the longest row.

Row advantages need no batch, only rewards [N] and integers [N] that are equal for completions of one prompt:

>>> import torch
>>> objective = build({"advantage": {"baseline": "leave_one_out", "scale": "none"}, "aggregate": "token_mean"})
>>> objective.advantages(torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0]), torch.tensor([7, 7, 7, 9, 9])).tolist()
[1.0, -0.5, -0.5, 0.0, 0.0]

A loss reads an `Experience` (experience.py says the shape of each of its tensors): token tensors [T], row tensors [N],
and `row_ids` [T] for which token is whose. Padded tensors [N, L] are flattened; nan and anything else may stand where
`loss_mask` is False. Of the fields that may be None an objective names those it needs: `objective.needs_old`,
`needs_reference`, `needs_critic`, `needs_top_k`, `needs_step_rewards`; a missing one is a ValueError.

>>> from rlvr.objectives.experience import Experience
>>> mask = torch.tensor([[False, True, True], [False, True, False]])  # a prompt token each; the second row is shorter
>>> old = torch.tensor([[0.0, -1.0, -2.0], [0.0, -0.5, float("nan")]])
>>> experience = Experience(
...     rewards=torch.tensor([1.0, 0.0], dtype=torch.float64),
...     correct=torch.tensor([True, False]),  # the verifier's outcome: filters and the likelihood term read it
...     truncated=torch.tensor([False, False]),
...     group_ids=torch.tensor([0, 0]),
...     row_ids=torch.tensor([0, 0, 0, 1, 1, 1]),
...     loss_mask=mask.flatten(),
...     rollout_logprobs=old.flatten(),
...     old_logprobs=old.flatten(),
... )
>>> experience, metrics = objective.prepare(experience)
>>> experience.advantages.tolist()
[0.0, 1.0, 1.0, 0.0, -1.0, 0.0]
>>> policy_logprobs = old.clone().requires_grad_()
>>> loss, metrics = objective.loss(policy_logprobs.flatten(), experience)  # the whole batch in one: no weights given
>>> loss.backward()
>>> policy_logprobs.grad.mul(3).tolist()  # -A / 3 tokens
[[0.0, -1.0, -1.0], [0.0, 1.0, 0.0]]
>>> round(metrics["policy/ratio_max"].item(), 3)
1.0
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlvr.objectives.legality import check
from rlvr.objectives.spec import ObjectiveSpec
from rlvr.validation import validate

if TYPE_CHECKING:
    from rlvr.objectives.objective import Objective

__all__ = ["ObjectiveSpec", "build", "check"]


def build(spec: Mapping[str, Any] | ObjectiveSpec, *, max_new_tokens: int | None = None, seed: int = 0) -> Objective:
    """The objective that `spec` describes.

    Args:
        spec: the keys of `ObjectiveSpec`, nested; missing ones take their defaults.
        max_new_tokens: longest completion in tokens; the `constant_length` of a spec that leaves it unset.
        seed: of what an objective draws (the tokens of `clip_cov`).

    Raises:
        ConfigError: a wrong key, type or range, or two keys that contradict each other.
    """
    from rlvr.objectives.objective import Objective  # torch: only where an objective is really built

    if not isinstance(spec, ObjectiveSpec):
        spec = validate(ObjectiveSpec, spec, "objective")
    check(spec)
    if spec.constant_length is None:
        spec = replace(spec, constant_length=max_new_tokens)
    return Objective(spec, seed)
