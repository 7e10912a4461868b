"""The critic: a linear value head on a transformer of its own, or on the policy's.

Shape legend: N rows, T tokens of all rows end to end, t of one microbatch, D hidden size.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path

import torch
from torch import Tensor, nn

from rlvr.batch import Batch
from rlvr.config import CriticConfig, PolicyConfig
from rlvr.objectives.aggregation import Weights
from rlvr.objectives.objective import Objective
from rlvr.policy.microbatches import Metrics, Microbatches
from rlvr.policy.model import CausalModel, hidden_states, trained_parameters
from rlvr.policy.optimizer import MasterAdamW

log = logging.getLogger(__name__)

FILE = "critic.pt"


class Critic:
    """Values of the states of packed rows. The head starts at 0, and so do all values.

    Args:
        model: whose transformer it reads: the policy itself, or a model that becomes the critic's own.
        config: which of the two it is, and the critic's learning rate.
        options: AdamW's other options, as the policy's.
        microbatches: the policy's, for both live in the same memory.
    """

    def __init__(
        self, model: CausalModel, config: CriticConfig, options: PolicyConfig, microbatches: Microbatches
    ) -> None:
        self.shares_backbone = config.backbone == "shared"
        # float32 whatever the backbone is: values and their targets differ by little.
        self.head = nn.Linear(model.head_weight.shape[1], 1, device=model.device, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self._backbone: nn.Module = model.module.base_model  # the output head, where not tied, is let go
        self._offload = model.offload
        self._learning_rate, self._microbatches = config.learning_rate, microbatches
        own = () if self.shares_backbone else trained_parameters(self._backbone)
        self._parameters = [*self.head.parameters(), *own]
        self._optimizer = MasterAdamW(
            self._parameters,
            betas=(options.beta1, options.beta2),
            weight_decay=options.weight_decay,
            max_grad_norm=options.max_grad_norm,
            state=options.optimizer,
        )

    @property
    def num_parameters(self) -> int:
        """Trained ones of its own: with a shared backbone those of the head alone."""
        return sum(parameter.numel() for parameter in self._parameters)

    # ---- values

    def annotate(self, batch: Batch) -> None:
        """Fills `values` and `final_values` of the batch."""

        def forward(part: Batch) -> Tensor:
            return self._values_after(hidden_states(self._backbone, part))

        after = self._microbatches.fill(batch, self.head.weight.device, forward)
        batch.values = _before(after)
        batch.final_values = after[batch.row_starts[1:] - 1]

    def loss(self, hidden: Tensor, part: Batch, objective: Objective, weights: Weights) -> tuple[Tensor, Metrics]:
        """`Objective.value_loss` of a microbatch whose last hidden states are `hidden` [t, D]."""
        return objective.value_loss(_before(self._values_after(hidden)), part, weights)

    def _values_after(self, hidden: Tensor) -> Tensor:
        """[t, D] -> [t]: the value of the state that each token leads to."""
        values: Tensor = self.head(hidden.to(self.head.weight.dtype)).squeeze(-1)
        return values

    # ---- training

    def step(self, minibatch: Batch, objective: Objective, weights: Weights) -> dict[str, float] | None:
        """One optimizer step of the critic's own weights on the value loss; a shared backbone stays as it is.

        Returns:
            The metrics of `Objective.value_loss` and `critic/grad_norm`; None when the gradient is not finite.
        """

        def loss_of(part: Batch, tokens: Tensor) -> tuple[Tensor, Metrics]:
            with torch.set_grad_enabled(not self.shares_backbone):
                hidden = hidden_states(self._backbone, part, self._offload)
            return self.loss(hidden, part, objective, weights[tokens])

        metrics = self._microbatches.accumulate(minibatch, self.zero_grad, loss_of)
        norm = self.apply_gradients()
        return None if norm is None else metrics | norm

    def zero_grad(self) -> None:
        self._optimizer.zero_grad()

    def apply_gradients(self) -> dict[str, float] | None:
        """AdamW's step on the gradients gathered: `critic/grad_norm`, or None when it is not finite: no step then."""
        norm, stepped = self._optimizer.step(self._learning_rate)
        if not stepped:
            log.warning("a gradient of the critic is not finite: its optimizer step is skipped")
        return {"critic/grad_norm": norm} if stepped else None

    # ---- files

    def save(self, folder: Path) -> None:
        """Writes its weights and its optimizer's state."""
        weights = [parameter.detach() for parameter in self._parameters]
        torch.save({"weights": weights, "optimizer": self._optimizer.state_dict()}, folder / FILE)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Goes on from `save`, bit for bit."""
        state = torch.load(folder / FILE, map_location="cpu", weights_only=True)
        for own, saved in zip(self._parameters, state["weights"], strict=True):
            own.copy_(saved)
        self._optimizer.load_state_dict(state["optimizer"])


def explained_variance(batch: Batch) -> float:
    """1 - Var(returns - values) / Var(returns) over the loss tokens of a prepared batch; nan: all returns are equal."""
    assert batch.values is not None
    assert batch.returns is not None
    returns, values = batch.returns[batch.loss_mask], batch.values[batch.loss_mask]
    if returns.unique().numel() < 2:
        return math.nan
    return float(1 - (returns - values).var(correction=0) / returns.var(correction=0))


def _before(after: Tensor) -> Tensor:
    """[t] values of the states after each token -> [t] before it; a row's first token gets another row's."""
    return after.roll(1)
