"""The policy: log-probs of packed batches, optimizer steps on an objective, its weights and its files.

Shape legend: N rows, T tokens of all rows end to end.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from rlvr.batch import Batch, pack
from rlvr.config import ModelConfig, PolicyConfig
from rlvr.objectives.objective import Objective
from rlvr.policy.model import CausalModel, load_model
from rlvr.policy.optimizer import MasterAdamW, learning_rate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

MIN_MICROBATCH_TOKENS = 256

R = TypeVar("R")

# (microbatch, where its tokens stand in the minibatch, log-probs, entropies) -> (loss, metrics); both add over them
Loss = Callable[[Batch, Tensor, Tensor, Tensor], tuple[Tensor, dict[str, Tensor]]]


class Policy:
    """The model that is trained.

    Args:
        model: a Hugging Face folder or hub id; also the reference, until `reference` names another.
        options: precision, optimizer and memory.
        total_updates: optimizer steps of the whole run, for the schedule.
        temperature: the sampling temperature, at which all log-probs of training are taken.
        seed: shuffles the rows into minibatches.

    Raises:
        ModelError: the model cannot be used.
    """

    def __init__(
        self, model: ModelConfig, options: PolicyConfig, *, total_updates: int, temperature: float, seed: int = 0
    ) -> None:
        device = options.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.reference = model
        self.version = 0
        """Counts the calls that changed the weights."""
        self.model = load_model(
            model, getattr(torch, options.dtype), device, gradient_checkpointing=options.gradient_checkpointing
        )
        self._options, self._total_updates, self._temperature, self._seed = options, total_updates, temperature, seed
        self._tokens_per_microbatch = options.tokens_per_microbatch
        self._num_steps = 0
        self._reference_model: CausalModel | None = None
        self._optimizer = MasterAdamW(
            self.model.module.parameters(),
            betas=(options.beta1, options.beta2),
            weight_decay=options.weight_decay,
            max_grad_norm=options.max_grad_norm,
        )

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.module.parameters())

    # ---- log-probs

    def logprobs(self, batch: Batch) -> Tensor:
        """[T] float32: log-probs of the loss tokens at the sampling temperature, 0 elsewhere; without gradient."""
        return self._logprobs(self.model, batch, self._temperature)

    def sequence_logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-prob at temperature 1 of each token given those before it; `len(sequence) - 1` values a sequence."""
        batch = pack([(sequence[:1], sequence[1:]) for sequence in sequences])
        values = self._logprobs(self.model, batch, 1.0)[batch.loss_mask]
        return [part.tolist() for part in values.split([len(sequence) - 1 for sequence in sequences])]

    def annotate(self, batch: Batch, objective: Objective) -> None:
        """Fills `old_logprobs` and `ref_logprobs` of the batch where the objective reads them."""
        if objective.needs_old:
            batch.old_logprobs = self.logprobs(batch)
        if objective.needs_reference:
            if self._reference_model is None:
                self._reference_model = load_model(self.reference, self.model.module.dtype, self.model.device)
                self._reference_model.module.requires_grad_(False)
            batch.ref_logprobs = self._logprobs(self._reference_model, batch, self._temperature)

    @torch.no_grad()
    def _logprobs(self, model: CausalModel, batch: Batch, temperature: float) -> Tensor:
        def forward(max_tokens: int) -> Tensor:
            result = torch.zeros(batch.num_tokens, device=batch.token_ids.device)
            for rows in batch.microbatch_rows(max_tokens, _active_rows(batch)):
                part = batch.select(rows).to(model.device)
                values, _ = model.logprobs(part, temperature, self._options.logprob_chunk_tokens)
                result[batch.token_index(rows)] = values.to(result.device)
            return result

        return self._within_memory(forward)

    # ---- training

    def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        """Takes `minibatches` optimizer steps in each of `epochs` passes over a prepared batch.

        The gradient of a step does not depend on how its rows are cut into microbatches. A step whose gradient is not
        finite leaves the weights alone and is counted in `policy/skipped`; a minibatch without a loss token is no step.

        Returns:
            Means over the steps taken of the objective's metrics (the largest, for names that end in `_max`), of
            `policy/grad_norm` and `policy/lr`, and the sums `policy/skipped` and `tokens/trained`.
        """
        batch, spec = batch.to(self.model.device), objective.spec
        steps: list[dict[str, float]] = []
        num_skipped = num_tokens = 0
        for _ in range(spec.epochs):
            shuffle = torch.Generator().manual_seed(self._seed * 1_000_003 + self._num_steps)
            for minibatch in batch.minibatches(spec.minibatches, shuffle if spec.num_steps > 1 else None):
                if not minibatch.loss_mask.any():
                    continue
                metrics = self._step(minibatch, objective)
                self._num_steps += 1
                if metrics is None:
                    num_skipped += 1
                    log.warning("a gradient is not finite: optimizer step %d is skipped", self._num_steps)
                else:
                    steps.append(metrics)
                    num_tokens += int(minibatch.loss_mask.sum())
        if steps:
            self.version += 1
        elif not num_skipped:
            log.warning("no row has a loss token: the policy stays as it is")
        metrics = over_steps(steps)
        objective.after_update(metrics, batch.num_rows)
        return metrics | {"policy/skipped": float(num_skipped), "tokens/trained": float(num_tokens)}

    def sft(self, batch: Batch, learning_rate: float) -> dict[str, float]:
        """One supervised step on the mean negative log-likelihood of the batch's loss tokens, at temperature 1.

        Returns:
            `sft/loss` in nats a token, `policy/entropy`, `policy/grad_norm`, `policy/lr`, `tokens/trained`.
        """
        num_tokens = int(batch.loss_mask.sum())

        def mean_nll(part: Batch, _: Tensor, logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            loss = -logprobs.sum() / num_tokens
            return loss, {"sft/loss": loss.detach(), "policy/entropy": entropy.sum() / num_tokens}

        metrics = self._accumulate(batch.to(self.model.device), mean_nll, temperature=1.0)
        norm, stepped = self._optimizer.step(learning_rate)
        self.version += stepped
        return metrics | {"policy/grad_norm": norm, "policy/lr": learning_rate, "tokens/trained": float(num_tokens)}

    def reset_optimizer(self) -> None:
        """Forgets AdamW's moments and starts the schedule anew: between supervised and reinforcement learning."""
        self._optimizer.reset()
        self._num_steps = 0

    def _step(self, minibatch: Batch, objective: Objective) -> dict[str, float] | None:
        """One optimizer step; None when the gradient is not finite."""
        weights = objective.weights(minibatch)

        def loss(part: Batch, tokens: Tensor, logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            return objective.loss(logprobs, part, weights[tokens], entropy)

        metrics = self._accumulate(minibatch, loss, self._temperature, entropy_grad=objective.needs_entropy)
        options = self._options
        rate = learning_rate(
            self._num_steps, options.learning_rate, options.schedule, options.warmup_steps, self._total_updates
        )
        norm, stepped = self._optimizer.step(rate)
        return metrics | {"policy/grad_norm": norm, "policy/lr": rate} if stepped else None

    def _accumulate(
        self, minibatch: Batch, loss_of: Loss, temperature: float, *, entropy_grad: bool = False
    ) -> dict[str, float]:
        """Sums gradients and metrics over microbatches; rows without a loss token need no forward."""

        def run(max_tokens: int) -> dict[str, float]:
            self._optimizer.zero_grad()
            weight_grad = self._optimizer.gradient(self.model.head_weight)
            parts = []
            for rows in minibatch.microbatch_rows(max_tokens, _active_rows(minibatch)):
                part = minibatch.select(rows)
                logprobs, entropy = self.model.logprobs(
                    part,
                    temperature,
                    self._options.logprob_chunk_tokens,
                    weight_grad=weight_grad,
                    entropy_grad=entropy_grad,
                )
                loss, metrics = loss_of(part, minibatch.token_index(rows), logprobs, entropy)
                loss.backward()
                parts.append({name: float(value) for name, value in metrics.items()})
            return over_microbatches(parts)

        return self._within_memory(run)

    def _within_memory(self, work: Callable[[int], R]) -> R:
        """Runs `work(tokens per microbatch)`, again with half as many whenever the GPU's memory does not suffice."""
        while True:
            try:
                return work(self._tokens_per_microbatch)
            except torch.OutOfMemoryError:
                if self._tokens_per_microbatch <= MIN_MICROBATCH_TOKENS:
                    raise
            self._tokens_per_microbatch //= 2
            log.warning("out of GPU memory: going on with policy.tokens_per_microbatch=%d", self._tokens_per_microbatch)
            torch.cuda.empty_cache()

    # ---- weights and files

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(Name in a saved checkpoint, tensor) of every weight, tied ones once."""
        for name, parameter in self.model.module.named_parameters():
            yield name, parameter.detach()

    def export(self, folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        """Writes an ordinary Hugging Face folder."""
        self.model.module.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    def save(self, folder: Path) -> None:
        """Writes what training goes on from: the weights in Hugging Face form and the optimizer's state."""
        self.model.module.save_pretrained(folder / "model")
        torch.save(self._optimizer.state_dict(), folder / "optimizer.pt")
        state = {"version": self.version, "num_steps": self._num_steps}
        (folder / "policy.json").write_text(json.dumps(state), encoding="utf-8")

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Goes on from `save`, bit for bit."""
        saved = load_model(ModelConfig(path=str(folder / "model")), self.model.module.dtype, self.model.device)
        for own, other in zip(self.model.module.parameters(), saved.module.parameters(), strict=True):
            own.copy_(other)
        state = torch.load(folder / "optimizer.pt", map_location=self.model.device, weights_only=True)
        self._optimizer.load_state_dict(state)
        counts = json.loads((folder / "policy.json").read_text(encoding="utf-8"))
        self.version, self._num_steps = counts["version"], counts["num_steps"]


def over_microbatches(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """Sums by name; the largest for names that end in `_max`."""
    names = parts[0] if parts else {}
    return {name: (max if name.endswith("_max") else sum)(part[name] for part in parts) for name in names}


def over_steps(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Means by name; the largest for names that end in `_max`."""
    totals = over_microbatches(steps)
    return {name: value if name.endswith("_max") else value / len(steps) for name, value in totals.items()}


def _active_rows(batch: Batch) -> Tensor:
    """[n] int64: rows with a loss token."""
    return torch.bincount(batch.row_ids[batch.loss_mask], minlength=batch.num_rows).nonzero().squeeze(-1)
