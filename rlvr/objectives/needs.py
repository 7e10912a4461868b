"""What an objective asks the trainer to compute, from its spec alone; nothing is computed that is not read."""

from __future__ import annotations

from rlvr.objectives.spec import PICKING, TOP_K, ObjectiveSpec


class Needs:
    """The part of `Objective` that looks at the spec only."""

    def __init__(self, spec: ObjectiveSpec) -> None:
        self.spec = spec

    @property
    def needs_old(self) -> bool:
        """Whether `old_logprobs` takes a forward of its own before the first step on a batch."""
        return bool(self.readers_of_old)

    @property
    def readers_of_old(self) -> list[str]:
        """The choices that read `old_logprobs` before or beyond the first step on a batch, as `key=value`.

        With one optimizer step a batch they are the current log-probs, detached, unless they are read earlier: by a
        KL in the reward, or by the choice of tokens that precedes the forward (`clip_cov`, `kl_cov`).
        """
        spec = self.spec
        anchored = spec.ratio.level != "none" and spec.ratio.anchor == "old"
        several_steps = spec.num_steps > 1
        readers = {
            f"ratio.anchor=old with {spec.num_steps} steps a batch": several_steps and anchored,
            f"correction.kind={spec.correction.kind} with {spec.num_steps} steps a batch": (
                several_steps and spec.correction.kind != "none"
            ),
            "kl.placement=reward": self._kl_in == "reward",
            f"trust.kind={spec.trust.kind}": anchored and self._picks,
        }
        return [f"objective.{choice}" for choice, reads in readers.items() if reads]

    @property
    def needs_reference(self) -> bool:
        """Whether a reference model is loaded and `ref_logprobs` are read."""
        return self._kl_in != "none"

    @property
    def needs_entropy(self) -> bool:
        """Whether `loss` needs the entropy with its gradient."""
        return self.spec.entropy.coef > 0

    @property
    def needs_exact_kl(self) -> bool:
        """Whether `loss` needs `exact_kl`: `kl.exact` of policy and reference at each token, with its gradient."""
        return self._kl_in == "loss" and self.spec.kl.estimator == "exact"

    @property
    def needs_top_k(self) -> int:
        """K of `topk_ids` and `topk_logprobs`, and of `loss`'s `topk_logprobs`; 0 = none are read."""
        trust = self.spec.trust
        return trust.top_k if trust.kind == "divergence_mask" and trust.divergence in TOP_K else 0

    @property
    def needs_critic(self) -> bool:
        """Whether a critic is trained and `values` are read (and `final_values`: `critic.bootstrap_truncated`)."""
        return self.spec.advantage.baseline == "critic"

    @property
    def needs_step_rewards(self) -> bool:
        """Whether `step_rewards` and `step_ends` are read."""
        return self.spec.advantage.credit == "process"

    @property
    def _kl_in(self) -> str:
        return self.spec.kl.placement if self.spec.kl.coef > 0 else "none"

    @property
    def _picks(self) -> bool:
        return self.spec.trust.kind in PICKING

    @property
    def _controls_trust(self) -> bool:
        """The controller moves `trust.coef`, not `kl.coef`."""
        return self.spec.trust.kind == "kl_penalty"

    @property
    def _whitens_later(self) -> bool:
        """Tokens of one row differ, so that they are whitened once their advantages are there."""
        return self.spec.token_credit and self.spec.advantage.scale == "whiten_tokens"
