"""The policy: log-probs of packed batches, optimizer steps on an objective, its weights and its files.

Shape legend: N rows, T tokens of all rows end to end, t of one microbatch, D hidden size.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlvr.batch import Batch, pack
from rlvr.config import CriticConfig, LoraConfig, ModelConfig, PolicyConfig
from rlvr.lora import add_adapters, load_adapters
from rlvr.objectives.aggregation import Weights
from rlvr.objectives.objective import Objective
from rlvr.policy.critic import Critic, explained_variance
from rlvr.policy.exact_kl import exact_kl
from rlvr.policy.logprobs import Head, token_logprobs, topk_logprobs
from rlvr.policy.microbatches import Metrics, Microbatches, over_steps
from rlvr.policy.model import CausalModel, copy_weights, load_model, trained_parameters
from rlvr.policy.optimizer import MasterAdamW, learning_rate
from rlvr.policy.reference import Reference

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

# Folders in a checkpoint: it has one of the two.
MODEL, ADAPTER = "model", "adapter"


@dataclass(frozen=True)
class Forward:
    """The policy's forward over one microbatch, with gradient."""

    part: Batch
    tokens: Tensor
    """[t] int64: where its tokens stand in the minibatch."""
    hidden: Tensor
    """[t, D]: last hidden states."""
    head: Head
    logprobs: Tensor
    """[t]: of the loss tokens, 0 elsewhere."""
    entropy: Tensor
    """[t]: as the log-probs."""


# The loss of a microbatch and its metrics; both add over microbatches.
Loss = Callable[[Forward], tuple[Tensor, Metrics]]


class Policy:
    """The model that is trained.

    Args:
        model: a Hugging Face folder or hub id.
        options: precision, optimizer and memory.
        lora: adapters to train instead of the weights, also of a critic with a backbone of its own.
        total_updates: optimizer steps of the policy in the whole run, for the schedule.
        temperature: the sampling temperature, at which all log-probs of training are taken.
        seed: shuffles the rows into minibatches, draws the adapters, and rounds weights where that is done at random.
        reference: for objectives with a KL to it; None: `model`.
        critic: for objectives with a critic.

    Raises:
        ModelError: the model cannot be used.
        ConfigError: it has no such layer as `lora.targets` names.
    """

    def __init__(
        self,
        model: ModelConfig,
        options: PolicyConfig,
        *,
        lora: LoraConfig | None = None,
        total_updates: int,
        temperature: float,
        seed: int = 0,
        reference: Reference | None = None,
        critic: CriticConfig | None = None,
    ) -> None:
        device = options.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device == "cpu":
            _warn_of_offload(options)

        def load() -> CausalModel:
            dtype: torch.dtype = getattr(torch, options.dtype)
            loaded = load_model(
                model,
                dtype,
                device,
                checkpointing=options.gradient_checkpointing,
                offload_activations=options.offload_activations and device != "cpu",
            )
            if lora is not None:
                add_adapters(loaded.module, lora, seed)
            return loaded

        self.model = load()
        self.version = 0
        """Counts the calls that changed the weights."""
        self._options, self._total_updates, self._temperature, self._seed = options, total_updates, temperature, seed
        self._num_steps = self._num_batches = 0
        self._microbatches = Microbatches(options.tokens_per_microbatch, share_prompts=options.share_prompts)
        self._has_adapters = lora is not None and lora.rank > 0
        self._reference = reference or Reference(model, is_base=self._has_adapters)
        self._optimizer = MasterAdamW(
            trained_parameters(self.model.module),
            betas=(options.beta1, options.beta2),
            weight_decay=options.weight_decay,
            max_grad_norm=options.max_grad_norm,
            state=options.optimizer,
            seed=seed,
        )
        self._critic: Critic | None = None
        if critic is not None:
            backbone = self.model if critic.backbone == "shared" else load()
            self._critic = Critic(backbone, critic, options, self._microbatches)

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.module.parameters())

    @property
    def num_trained_parameters(self) -> int:
        """Those of the policy, or of its adapters, and of its critic."""
        own = sum(parameter.numel() for parameter in trained_parameters(self.model.module))
        return own + self.num_critic_parameters

    @property
    def num_critic_parameters(self) -> int:
        """Those that a critic trains of its own."""
        return self._critic.num_parameters if self._critic else 0

    @property
    def num_networks(self) -> int:
        """Transformers that an update goes through: a critic may have its own."""
        return 2 if self._critic is not None and not self._critic.shares_backbone else 1

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
        """Fills what the objective reads: `old_logprobs`, `ref_logprobs`, `values` and `final_values`."""
        if objective.needs_old:
            batch.old_logprobs = self.logprobs(batch)
        if objective.needs_reference:
            batch.ref_logprobs = self._logprobs(self._reference.model(self.model), batch, self._temperature)
        critic = self._critic_for(objective)
        if critic is not None:
            critic.annotate(batch)

    def _logprobs(self, model: CausalModel, batch: Batch, temperature: float) -> Tensor:
        def forward(part: Batch) -> Tensor:
            return model.logprobs(part, temperature, self._options.logprob_chunk_tokens)[0]

        return self._microbatches.fill(batch, model.device, forward)

    # ---- training

    def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        """Takes `minibatches` optimizer steps in each of `epochs` passes over a prepared batch.

        The gradient of a step does not depend on how its rows are cut into microbatches. A step whose gradient is not
        finite leaves the weights alone and is counted in `policy/skipped`; a minibatch without a loss token is no step.
        While the critic warms up, only its steps are taken.

        Returns:
            Means over the steps taken of the objective's metrics (the largest, for names that end in `_max`), of
            `policy/grad_norm` and `policy/lr`, and the sums `policy/skipped` and `tokens/trained`; with a critic
            `critic/grad_norm` and, of the values before the first step, `critic/explained_variance`.
        """
        batch, critic = batch.to(self.model.device), self._critic_for(objective)
        joint = critic is not None and critic.shares_backbone and objective.trains_policy
        steps: list[dict[str, float] | None] = []
        critic_steps: list[dict[str, float] | None] = []
        num_tokens = 0
        for minibatch in self._minibatches(batch, objective):
            weights = objective.weights(minibatch)
            if critic is not None and not joint:
                critic_steps.append(critic.step(minibatch, objective, weights))
            if objective.trains_policy:
                steps.append(self._step(minibatch, objective, weights, critic if joint else None))
                num_tokens += int(minibatch.loss_mask.sum()) if steps[-1] is not None else 0
        taken = [metrics for metrics in steps if metrics is not None]
        if taken:
            self.version += 1
        if not steps and not critic_steps:
            log.warning("no row has a loss token: the policy stays as it is")
        metrics = over_steps(taken) | over_steps([metrics for metrics in critic_steps if metrics is not None])
        if critic is not None:
            metrics["critic/explained_variance"] = explained_variance(batch)
        self._num_batches += 1
        if objective.needs_reference:
            self._reference.after_update(self.model, self._num_batches)
        objective.after_update(metrics, batch.num_rows)
        return metrics | {"policy/skipped": float(steps.count(None)), "tokens/trained": float(num_tokens)}

    def sft(self, batch: Batch, learning_rate: float) -> dict[str, float]:
        """One supervised step on the mean negative log-likelihood of the batch's loss tokens, at temperature 1.

        Returns:
            `sft/loss` in nats a token, `policy/entropy`, `policy/grad_norm`, `policy/lr`, `tokens/trained`.
        """
        num_tokens = int(batch.loss_mask.sum())

        def mean_nll(forward: Forward) -> tuple[Tensor, Metrics]:
            loss = -forward.logprobs.sum() / num_tokens
            return loss, {"sft/loss": loss.detach(), "policy/entropy": forward.entropy.sum() / num_tokens}

        metrics = self._accumulate(
            batch.to(self.model.device), mean_nll, temperature=1.0, reset=self._optimizer.zero_grad
        )
        norm, stepped = self._optimizer.step(learning_rate)
        self.version += stepped
        return metrics | {"policy/grad_norm": norm, "policy/lr": learning_rate, "tokens/trained": float(num_tokens)}

    def _minibatches(self, batch: Batch, objective: Objective) -> Iterator[Batch]:
        """Those of all passes that have a loss token."""
        spec = objective.spec
        for epoch in range(spec.epochs):
            seed = self._seed * 1_000_003 + self._num_batches * spec.epochs + epoch
            shuffle = torch.Generator().manual_seed(seed) if spec.num_steps > 1 else None
            for minibatch in batch.minibatches(spec.minibatches, shuffle):
                if minibatch.loss_mask.any():
                    yield minibatch

    def _step(
        self, minibatch: Batch, objective: Objective, weights: Weights, critic: Critic | None
    ) -> dict[str, float] | None:
        """One optimizer step, with that of a critic that shares the backbone; None when a gradient is not finite."""

        def loss_of(forward: Forward) -> tuple[Tensor, Metrics]:
            part, part_weights = forward.part, weights[forward.tokens]
            exact = self._exact_kl(forward) if objective.needs_exact_kl else None
            topk = None
            if part.topk_ids is not None:
                topk = topk_logprobs(forward.hidden, forward.head, part.topk_ids, part.loss_mask)
            loss, metrics = objective.loss(
                forward.logprobs, part, part_weights, forward.entropy, exact_kl=exact, topk_logprobs=topk
            )
            if critic is not None:
                value_loss, value_metrics = critic.loss(forward.hidden, part, objective, part_weights)
                loss, metrics = loss + value_loss, metrics | value_metrics
            return loss, metrics

        def reset() -> None:
            self._optimizer.zero_grad()
            if critic is not None:
                critic.zero_grad()

        metrics = self._accumulate(
            minibatch, loss_of, self._temperature, reset=reset, entropy_grad=objective.needs_entropy
        )
        options = self._options
        rate = learning_rate(
            self._num_steps, options.learning_rate, options.schedule, options.warmup_steps, self._total_updates
        )
        self._num_steps += 1
        critic_norm = critic.apply_gradients() if critic is not None else {}
        if critic_norm is None:
            return None
        norm, stepped = self._optimizer.step(rate)
        if not stepped:
            log.warning("a gradient is not finite: optimizer step %d is skipped", self._num_steps)
            return None
        return metrics | critic_norm | {"policy/grad_norm": norm, "policy/lr": rate}

    def _exact_kl(self, forward: Forward) -> Tensor:
        """[t]: KL(policy||reference) over the vocabulary, with gradient."""
        reference = self._reference.model(self.model)
        with torch.no_grad():
            ref_hidden = reference.hidden_states(forward.part)
        ref_head = reference.head(self._temperature, self._options.logprob_chunk_tokens)
        return exact_kl(forward.hidden, forward.head, ref_hidden, ref_head, forward.part.loss_mask)

    def _accumulate(
        self,
        minibatch: Batch,
        loss_of: Loss,
        temperature: float,
        *,
        reset: Callable[[], None],
        entropy_grad: bool = False,
    ) -> dict[str, float]:
        """Sums gradients and metrics over microbatches."""

        def forward(part: Batch, tokens: Tensor) -> tuple[Tensor, Metrics]:
            weight = self.model.head_weight
            weight_grad = self._optimizer.gradient(weight) if weight.requires_grad else None
            head = self.model.head(temperature, self._options.logprob_chunk_tokens, weight_grad)
            hidden = self.model.hidden_states(part)
            logprobs, entropy = token_logprobs(hidden, head, part.token_ids, part.loss_mask, entropy_grad=entropy_grad)
            return loss_of(Forward(part, tokens, hidden, head, logprobs, entropy))

        return self._microbatches.accumulate(minibatch, reset, forward)

    def _critic_for(self, objective: Objective) -> Critic | None:
        """The critic of an objective that reads one."""
        assert self._critic is not None or not objective.needs_critic, "this policy was made without a critic"
        return self._critic if objective.needs_critic else None

    # ---- weights and files

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(Name in the module, tensor) of every trained weight, tied ones once."""
        for name, parameter in self.model.module.named_parameters():
            if parameter.requires_grad:
                yield name, parameter.detach()

    def export(self, folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        """Writes an ordinary Hugging Face folder."""
        assert not self._has_adapters, "a checkpoint of adapters is merged by `rlvr export`"
        self.model.module.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    def save(self, folder: Path) -> None:
        """Writes what training goes on from: weights (of the adapters, where there are some) and optimizer state of the
        policy and of its critic, and the reference where it is not one that can be loaded again."""
        self.model.module.save_pretrained(folder / (ADAPTER if self._has_adapters else MODEL))
        torch.save(self._optimizer.state_dict(), folder / "optimizer.pt")
        if self._critic is not None:
            self._critic.save(folder)
        self._reference.save(folder)
        state = {"version": self.version, "num_steps": self._num_steps, "num_batches": self._num_batches}
        (folder / "policy.json").write_text(json.dumps(state), encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Goes on from `save`, bit for bit."""
        if self._has_adapters:
            load_adapters(self.model.module, folder / ADAPTER)
        else:
            saved = load_model(ModelConfig(path=str(folder / MODEL)), self.model.module.dtype, self.model.device)
            copy_weights(saved.module, self.model.module)
        state = torch.load(folder / "optimizer.pt", map_location="cpu", weights_only=True)
        self._optimizer.load_state_dict(state)
        if self._critic is not None:
            self._critic.load(folder)
        self._reference.load(folder, self.model)
        counts = json.loads((folder / "policy.json").read_text(encoding="utf-8"))
        self.version, self._num_steps = counts["version"], counts["num_steps"]
        self._num_batches = counts["num_batches"]


def _warn_of_offload(options: PolicyConfig) -> None:
    offloads = {"optimizer.offload": options.optimizer.offload, "offload_activations": options.offload_activations}
    for key in (key for key, is_set in offloads.items() if is_set):
        log.warning("policy.%s=true frees nothing where the policy trains on the CPU", key)
