"""An objective: the composition of one choice on each axis, from scored rows to a loss.

Shape legend: N rows, T tokens of all rows end to end; see `experience.py`. All tensors of a call are on one device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from rlvr.objectives import (
    advantages,
    aggregation,
    controllers,
    correction,
    covariance,
    credit,
    critic,
    filters,
    kl,
    ratios,
    trust_region,
)
from rlvr.objectives.experience import Experience
from rlvr.objectives.needs import Needs
from rlvr.objectives.segments import Segments, dense_ids
from rlvr.objectives.spec import ObjectiveSpec

E = TypeVar("E", bound=Experience)
Metrics = dict[str, Tensor]


class Objective(Needs):
    """Holds the spec and the few numbers that outlive a step: a moving average, a coefficient, two counts."""

    def __init__(self, spec: ObjectiveSpec, seed: int = 0) -> None:
        super().__init__(spec)
        self._seed = seed
        self._mean_reward: float | None = None
        self._coef = spec.trust.coef if self._controls_trust else spec.kl.coef
        self._num_batches = self._num_picks = 0

    # ---- what its state says

    @property
    def trains_policy(self) -> bool:
        """False while only the critic is trained: the policy's step on this batch is left out."""
        return not self.needs_critic or self._num_batches >= self.spec.critic.warmup_steps

    @property
    def kl_coef(self) -> float:
        """Weight of the KL to the reference, as its controller left it."""
        return self.spec.kl.coef if self._controls_trust else self._coef

    # ---- once a rollout batch

    def prepare(self, experience: E) -> tuple[E, dict[str, float]]:
        """Filters, KL in the reward, advantages and value targets, over one whole rollout batch.

        Returns:
            The experience with `loss_mask` and `kept` after the filters and `advantages` [T] filled (and `returns` [T]
            with a critic), and the metrics `groups/zero_variance` (share of groups whose rewards are all equal), with
            the filter on `groups/dropped`, and with a controller `policy/kl_coef`.

        Raises:
            ConfigError: rewards that the chosen scale is not defined for.
            ValueError: a tensor that the spec needs is missing.
        """
        left = filters.apply(experience, self.spec.filters)
        rows = Segments(experience.row_ids, left.loss_mask, experience.num_rows)
        options = self.spec.advantage
        scored = credit.Scored(experience, left, rows, self._penalty(experience), self.advantages, options.gamma)
        returns = None
        if self.needs_critic:
            rewards = credit.REWARDS[options.credit](scored)
            values, returns = critic.advantages_and_returns(rewards, experience, rows, options.gamma, self.spec.critic)
        else:
            values = credit.CREDITS[options.credit](scored)
        if self._whitens_later:
            active = values[left.loss_mask]
            values = values.masked_scatter(left.loss_mask, advantages.whiten(active, torch.ones_like(active), options))
        dtype = experience.rollout_logprobs.dtype
        uniform = filters.uniform(experience.rewards, experience.group_ids, left.counted)
        metrics = {"groups/zero_variance": share_of_groups(uniform, experience.group_ids)}
        if self.spec.filters.zero_variance:
            metrics["groups/dropped"] = share_of_groups(~left.kept, experience.group_ids)
        if self.spec.controller.kind != "fixed":
            metrics["policy/kl_coef"] = self._coef
        filled = replace(
            experience,
            loss_mask=left.loss_mask,
            kept=left.kept,
            advantages=values.to(dtype),
            returns=None if returns is None else returns.to(dtype),
        )
        return filled, metrics

    def advantages(
        self, rewards: Tensor, group_ids: Tensor, *, num_tokens: Tensor | None = None, kept: Tensor | None = None
    ) -> Tensor:
        """Row advantages of one step's batch (with `credit=process`, of its step rewards: a row a step).

        Call once a step, for the `ema` baseline moves on. Where tokens of a row may differ (`credit` other than
        outcome, or the critic) this is what they are made of, and `whiten_tokens` is left to `prepare`.

        Args:
            rewards: [N], any KL penalty already subtracted.
            group_ids: [N] integers: equal ones answer the same prompt.
            num_tokens: [N] active tokens of each row; only the scale `whiten_tokens` needs it.
            kept: [N] bool: rows in the statistics of `batch_std` and `whiten_tokens`; default all.

        Returns:
            [N] float64, on the device of `rewards`.
        """
        options = self.spec.advantage
        groups, num_groups = dense_ids(group_ids)
        rows = advantages.Rows(
            rewards=rewards.double(),
            groups=groups,
            num_groups=num_groups,
            kept=torch.ones_like(groups, dtype=torch.bool) if kept is None else kept,
            num_tokens=num_tokens,
            previous_mean=self._mean_reward,
        )
        self._mean_reward = advantages.next_mean(rows.rewards, self._mean_reward, options.ema_decay)
        centred = advantages.BASELINES[options.baseline](rows)
        return advantages.SCALES["none" if self._whitens_later else options.scale](centred, rows, options)

    def _penalty(self, experience: Experience) -> Tensor:
        """[T] float64: coef * KL(old||reference) by samples, where KL is in the reward; else 0."""
        rows = Segments(experience.row_ids, experience.loss_mask, experience.num_rows)
        if self._kl_in != "reward":
            return torch.zeros_like(rows.mask, dtype=torch.float64)
        old = rows.select(required(experience.old_logprobs, "old_logprobs for kl.placement=reward"))
        reference = rows.select(required(experience.ref_logprobs, "ref_logprobs for kl.placement=reward"))
        return self.kl_coef * kl.ESTIMATORS[self.spec.kl.estimator]((reference - old).double())

    # ---- once an optimizer minibatch

    def weights(self, minibatch: Experience) -> aggregation.Weights:
        """Every normaliser of one optimizer step, as weights per token; needs the whole minibatch over all ranks.

        Call once an optimizer step: `clip_cov` draws its tokens here.

        Raises:
            ConfigError: `aggregate=constant` without a `constant_length`.
            ValueError: log-probs that the choice of tokens needs are missing.
        """
        rows = Segments(minibatch.row_ids, minibatch.loss_mask, minibatch.num_rows)
        groups, num_groups = dense_ids(minibatch.group_ids)
        counts = aggregation.Counts(
            tokens=rows.counts,
            groups=groups,
            num_groups=num_groups,
            num_rows=minibatch.num_rows if minibatch.kept is None else int(minibatch.kept.sum()),
            constant_length=self.spec.constant_length,
        )
        dtype = minibatch.rollout_logprobs.dtype
        correct = picked = None
        if self.spec.nll_coef > 0:
            tokens = rows.counts * minibatch.correct
            correct = rows.spread(minibatch.correct / tokens.sum().clamp(min=1)).to(dtype)
        if self._picks:
            picked = self._pick(minibatch)
        return aggregation.Weights(
            aggregate=rows.spread(aggregation.AGGREGATES[self.spec.aggregate](counts)).to(dtype),
            mean=rows.spread(aggregation.token_mean(counts)).to(dtype),
            correct=correct,
            picked=picked,
        )

    def _pick(self, minibatch: Experience) -> Tensor:
        anchor = minibatch.rollout_logprobs if self.spec.ratio.anchor == "rollout" else minibatch.old_logprobs
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self._num_picks)
        self._num_picks += 1
        return covariance.pick(
            required(minibatch.advantages, "advantages: call prepare first"),
            required(anchor, "old_logprobs"),
            minibatch.loss_mask,
            self.spec.trust,
            generator,
        )

    # ---- once a microbatch

    def loss(
        self,
        policy_logprobs: Tensor,
        experience: Experience,
        weights: aggregation.Weights | None = None,
        entropy: Tensor | None = None,
        *,
        exact_kl: Tensor | None = None,
        topk_logprobs: Tensor | None = None,
    ) -> tuple[Tensor, Metrics]:
        """The part of the minibatch's loss that these rows give: sums over microbatches to the whole.

        Args:
            policy_logprobs: [T] current log-probs, with gradient, float32.
            experience: the rows, prepared.
            weights: of these tokens, cut from `weights(minibatch)`; None: these rows are the whole minibatch.
            entropy: [T] of the full distribution; needed with its gradient where `needs_entropy`.
            exact_kl: [T] KL(policy||reference) over the vocabulary, with gradient; needed where `needs_exact_kl`.
            topk_logprobs: [T, K] current log-probs of the experience's `topk_ids`; needed where `needs_top_k`.

        Returns:
            The loss to minimise (scalar) and metrics without gradient: contributions that add over microbatches,
            except names that end in `_max`, of which the largest counts.

        Raises:
            ValueError: a tensor that the spec needs is missing.
        """
        weights = self.weights(experience) if weights is None else weights
        rows = Segments(experience.row_ids, experience.loss_mask, experience.num_rows)
        logprobs, rollout = rows.select(policy_logprobs), rows.select(experience.rollout_logprobs)
        old = self._old(experience, rows, logprobs)
        anchor = {"old": old, "rollout": rollout}[self.spec.ratio.anchor]
        step = trust_region.Step(
            policy_logprobs=logprobs,
            anchor_logprobs=anchor,
            log_ratio=ratios.LEVELS[self.spec.ratio.level](logprobs - anchor, rows),
            advantages=rows.select(required(experience.advantages, "advantages: call prepare first")),
            rows=rows,
            coef=self._coef if self._controls_trust else self.spec.trust.coef,
            picked=weights.picked,
            topk_logprobs=self._top_k(experience, topk_logprobs),
        )
        terms, metrics = self._policy_terms(step, old - rollout, logprobs - rollout, weights)
        if self.needs_reference:
            reference = rows.select(required(experience.ref_logprobs, "ref_logprobs"))
            metrics["policy/kl_ref"] = (weights.mean * kl.k3(reference - logprobs)).sum()
            if self._kl_in == "loss":
                terms = terms + self.kl_coef * self._kl_terms(reference - logprobs, logprobs - anchor, rows, exact_kl)
        loss = (weights.aggregate * terms).sum()
        if weights.correct is not None:
            metrics["policy/nll"] = -(weights.correct * logprobs).sum()
            loss = loss + self.spec.nll_coef * metrics["policy/nll"]
        if entropy is not None or self.needs_entropy:
            metrics["policy/entropy"] = (weights.mean * rows.select(required(entropy, "entropy"))).sum()
            loss = loss - self.spec.entropy.coef * metrics["policy/entropy"]
        metrics["policy/loss"] = loss
        return loss, {name: value.detach() for name, value in metrics.items()}

    def _policy_terms(
        self, step: trust_region.Step, mismatch: Tensor, moved: Tensor, weights: aggregation.Weights
    ) -> tuple[Tensor, Metrics]:
        """[T] terms by trust region, correction and mask; `mismatch` = old - rollout, `moved` = logp - rollout."""
        rows = step.rows
        terms, outside = trust_region.KINDS[self.spec.trust.kind](step, self.spec.trust)
        terms = terms * correction.correction_weights(mismatch, rows, self.spec.correction)
        metrics = {
            "mismatch/kl": (weights.mean * kl.k3(mismatch)).sum(),
            "mismatch/ratio_max": rows.select(ratios.bounded(mismatch).exp()).max(),
        }
        if step.log_ratio is not None:
            metrics["policy/ratio_max"] = rows.select(step.ratio).max()
            metrics["policy/clip_fraction"] = (weights.mean * outside).sum()
            metrics["policy/kl_anchor"] = (weights.mean * kl.k3(step.policy_logprobs - step.anchor_logprobs)).sum()
        if self.spec.filters.off_policy_mask is not None:
            far = filters.off_policy(moved.detach(), step.advantages, rows, self.spec.filters.off_policy_mask)
            metrics["policy/off_policy_fraction"] = (weights.mean * far).sum()
            terms = torch.where(far, 0.0, terms)
        return terms, metrics

    def _kl_terms(self, difference: Tensor, log_ratio: Tensor, rows: Segments, exact_kl: Tensor | None) -> Tensor:
        if self.spec.kl.estimator == "exact":
            return rows.select(required(exact_kl, "exact_kl"))
        estimate = kl.ESTIMATORS[self.spec.kl.estimator](difference)
        return estimate * ratios.bounded(log_ratio).exp() if self.spec.kl.ratio_weighted else estimate

    def _top_k(self, experience: Experience, current: Tensor | None) -> tuple[Tensor, Tensor] | None:
        if not self.needs_top_k:
            return None
        behaviour = required(experience.topk_logprobs, "topk_logprobs of the sampler")
        return required(current, "the current topk_logprobs").detach(), behaviour

    def _old(self, experience: Experience, rows: Segments, logprobs: Tensor) -> Tensor:
        if experience.old_logprobs is not None:
            return rows.select(experience.old_logprobs)
        if self.needs_old:
            raise ValueError(
                "old_logprobs are missing: with several steps a batch the current ones are not the old ones"
            )
        return logprobs.detach()

    def value_loss(
        self, values: Tensor, experience: Experience, weights: aggregation.Weights | None = None
    ) -> tuple[Tensor, Metrics]:
        """The critic's part, to minimise: coef * token mean of 0.5 (V - target)^2, clipped about the old values.

        Args:
            values: [T] current values, with gradient.
            experience: the rows, prepared.
            weights: as in `loss`.

        Returns:
            As `loss`, with the metrics `critic/loss` (before coef) and `critic/clip_fraction`.
        """
        weights = self.weights(experience) if weights is None else weights
        rows = Segments(experience.row_ids, experience.loss_mask, experience.num_rows)
        terms, clipped = critic.value_terms(
            rows.select(values),
            rows.select(required(experience.values, "values")),
            rows.select(required(experience.returns, "returns: call prepare first")),
            self.spec.critic.value_clip,
        )
        loss = (weights.mean * terms).sum()
        metrics = {"critic/loss": loss.detach(), "critic/clip_fraction": (weights.mean * clipped).sum()}
        return self.spec.critic.coef * loss, metrics

    # ---- after a rollout batch, and what a checkpoint keeps

    def after_update(self, metrics: Mapping[str, float], num_rows: int) -> None:
        """Moves the controller and the critic's warm-up on; call once a batch, after all its optimizer steps.

        Args:
            metrics: means over the steps: `policy/kl_anchor` steers kl_penalty, `policy/kl_ref` everything else;
                without it (no step was taken) the coefficient stays.
            num_rows: rows of the batch.
        """
        self._num_batches += 1
        measured = metrics.get("policy/kl_anchor" if self._controls_trust else "policy/kl_ref")
        if measured is not None:
            control = controllers.CONTROLLERS[self.spec.controller.kind]
            self._coef = control(self._coef, measured, num_rows, self.spec.controller)

    def state_dict(self) -> dict[str, float | None]:
        """The moving average of the rewards, the controlled coefficient, and the counts of batches and draws."""
        return {
            "mean_reward": self._mean_reward,
            "coef": None if self.spec.controller.kind == "fixed" else self._coef,
            "num_batches": self._num_batches,
            "num_picks": self._num_picks,
        }

    def load_state_dict(self, state: Mapping[str, float | None]) -> None:
        """Takes back what `state_dict` gave."""
        self._mean_reward = state["mean_reward"]
        if state["coef"] is not None:
            self._coef = state["coef"]
        self._num_batches, self._num_picks = int(state["num_batches"] or 0), int(state["num_picks"] or 0)


def required(tensor: Tensor | None, name: str) -> Tensor:
    """The tensor, or ValueError naming what is missing."""
    if tensor is None:
        raise ValueError(f"the objective needs {name}")
    return tensor


def share_of_groups(flags: Tensor, group_ids: Tensor) -> float:
    """Share of the groups whose rows are flagged; `flags` [N] are equal within a group."""
    return dense_ids(group_ids[flags])[1] / max(dense_ids(group_ids)[1], 1)
