"""Objectives as compositions of small pure functions on tensors.

objective = build({"advantage": {"baseline": "leave_one_out", "scale": "none"}, "aggregate": "token_mean"})
batch, metrics = objective.prepare(batch)  # the whole rollout batch: filters, advantages
weights = objective.weights(minibatch)  # one optimizer step: every normaliser, known before the first forward
loss, metrics = objective.loss(policy_logprobs, microbatch, weights[tokens])  # sums over any split of the minibatch
objective.after_update(metrics, batch.num_rows)  # once the batch's steps are done: controllers, warm-up
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
