"""Small policies, one update of them, and what the optimizers see."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rlvr.batch import Batch
from rlvr.objectives.objective import Objective
from rlvr.policy.optimizer import MasterAdamW
from rlvr.policy.trainer import Policy

SHAPE = ((3, 11, 5, 1), (20, 2, 2, 9), (4, 4, 17, 6))
MakePolicy = Callable[..., Policy]


def weights_of(policy: Policy) -> dict[str, torch.Tensor]:
    """A copy of the weights; those of the critic's own as `critic.NUMBER`."""
    return {name: tensor.detach().clone() for name, tensor in named_weights(policy).items()}


def named_weights(policy: Policy) -> dict[str, torch.nn.Parameter]:
    own = policy._critic._parameters if policy._critic else ()
    return dict(policy.model.module.named_parameters()) | {f"critic.{i}": weight for i, weight in enumerate(own)}


def prepared(policy: Policy, objective: Objective, batch: Batch) -> Batch:
    """What `Policy.update` takes; the log-probs and values go into `batch` itself too."""
    policy.annotate(batch, objective)
    return objective.prepare(batch)[0]


def train(policy: Policy, objective: Objective, batch: Batch) -> dict[str, float]:
    return policy.update(prepared(policy, objective, batch), objective)


def gradients(policy: Policy, objective: Objective, batch: Batch) -> dict[str, torch.Tensor]:
    """The gradients that the optimizers see in an update's last step, before clipping."""
    return gradients_of_update(policy, objective, prepared(policy, objective, batch))


def gradients_of_update(policy: Policy, objective: Objective, batch: Batch) -> dict[str, torch.Tensor]:
    """As `gradients`, of a prepared batch."""
    seen: dict[str, torch.Tensor] = {}
    weights = named_weights(policy)

    def spy(optimizer: MasterAdamW) -> None:
        step = optimizer.step

        def spied(rate: float) -> tuple[float, bool]:
            seen.update({n: optimizer.gradient(w).clone() for n, w in weights.items() if id(w) in optimizer._slots})
            return step(rate)

        optimizer.step = spied

    spy(policy._optimizer)
    if policy._critic:
        spy(policy._critic._optimizer)
    policy.update(batch, objective)
    return seen


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], atol: float = 0) -> None:
    """Bit for bit, unless `atol` is given."""
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=atol, msg=name)
