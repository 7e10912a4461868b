"""The axes of the objective algebra as typed options; `legality.py` says which go together. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from rlvr.validation import STRICT

# Which choices ask more of the trainer; kept here because asking must not import torch.
TOP_K = frozenset({"topk_tv", "topk_kl"})
PICKING = frozenset({"clip_cov", "kl_cov"})

NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class AdvantageSpec:
    """From rewards to advantages (axes 1-3)."""

    __pydantic_config__ = STRICT

    baseline: Literal["none", "ema", "batch_mean", "group_mean", "leave_one_out", "critic"] = "group_mean"
    """What is subtracted from the reward."""
    scale: Literal["none", "group_std", "batch_std", "success_rate", "whiten_tokens"] = "group_std"
    """What the centred reward is divided by."""
    credit: Literal["outcome", "process", "discounted"] = "outcome"
    """What a token is credited with: the row's reward, the step rewards still to come, or discounted token rewards."""
    gamma: Fraction = 1.0
    """Discount a token, of `discounted` and of the critic."""
    success_order: Annotated[int, Field(gt=0)] | None = None
    """T of MaxRL's truncated objective (pass@1 to pass@T) for `success_rate` without a baseline; unset: group size."""
    ddof: Annotated[int, Field(ge=0, le=1)] = 0
    """Standard deviations divide by n - ddof; 0 as written in the papers, 1 for parity with TRL and verl."""
    eps: NonNegative = 1e-8
    """Added to a standard deviation (inside the root for whiten_tokens)."""
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay a step of the `ema` baseline."""


@dataclass(frozen=True)
class CriticSpec:
    """Generalised advantage estimation and the value loss, read by the baseline `critic`."""

    __pydantic_config__ = STRICT

    lam_policy: Fraction = 1.0
    """Lambda of the advantages."""
    lam_critic: Fraction = 1.0
    """Lambda of the value targets."""
    lam_alpha: Positive | None = None
    """Length-adaptive lambda of the advantages, 1 - 1/(lam_alpha x active tokens) (VAPO: 0.05), for `lam_policy`."""
    bootstrap_truncated: bool = False
    """A truncated row goes on at the value of its last state instead of ending at 0."""
    value_clip: NonNegative | None = 0.2
    """The value loss lets a value move so far from the old one; null: no clipping."""
    coef: NonNegative = 1.0
    """Weight of the value loss: 1 for a backbone of its own, 0.1 (TRL) to 0.5 (CleanRL) for a shared one."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """First steps of the run that train the critic only, under the fixed policy."""


@dataclass(frozen=True)
class RatioSpec:
    """Importance ratio of the current to the behaviour policy (axis 4)."""

    __pydantic_config__ = STRICT

    level: Literal["none", "token", "sequence", "sequence_product"] = "token"
    """`sequence` is GSPO's geometric mean over the row's tokens; `none` is REINFORCE's log-prob."""
    anchor: Literal["old", "rollout"] = "old"
    """The behaviour policy: the trainer's log-probs before the first step, or those the sampler returned."""


@dataclass(frozen=True)
class TrustSpec:
    """What keeps the policy near the behaviour policy (axis 5)."""

    __pydantic_config__ = STRICT

    kind: Literal[
        "none",
        "clip",
        "weight_clip",
        "divergence_mask",
        "soft_gate",
        "geo_mean",
        "kl_penalty",
        "clip_cov",
        "kl_cov",
    ] = "clip"
    """PPO's `clip`, CISPO's `weight_clip`, DPPO's `divergence_mask`, SAPO's `soft_gate`, GMPO's `geo_mean`, ..."""
    low: NonNegative = 0.2
    """The ratio's lower bound is 1 - low, the log-ratio's of geo_mean -low; divergence allowed where A < 0."""
    high: NonNegative = 0.2
    """The ratio's upper bound is 1 + high, the log-ratio's of geo_mean high; divergence allowed where A > 0."""
    dual: Annotated[float, Field(gt=1)] | None = None
    """Dual clip: for negative advantages the ratio's effect is capped here."""
    divergence: Literal["tv", "kl", "topk_tv", "topk_kl"] = "tv"
    """What divergence_mask bounds: of the sampled token against the rest, or of the sampler's likeliest tokens."""
    top_k: Annotated[int, Field(gt=0)] = 20
    """Likeliest tokens the sampler reports for the top-k divergences."""
    cap: Positive = 20.0
    """Largest ratio that weighs a token under divergence_mask."""
    tau_positive: Positive = 1.0
    """Steepness of soft_gate where A > 0."""
    tau_negative: Positive = 1.05
    """Steepness of soft_gate elsewhere."""
    coef: NonNegative = 1.0
    """Weight of kl_penalty's KL(old||policy), and of kl_cov's |log-ratio|."""
    cov_share: Fraction = 0.0002
    """Share of the minibatch's tokens, one at least, that clip_cov drops or kl_cov penalises."""
    cov_low: float = 1.0
    """clip_cov drops tokens of a covariance above this ..."""
    cov_high: float = 5.0
    """... and below this."""


@dataclass(frozen=True)
class KlSpec:
    """KL to the reference policy (axis 7); a coefficient of 0 loads no reference model."""

    __pydantic_config__ = STRICT

    placement: Literal["none", "reward", "loss"] = "none"
    """Subtracted from the token rewards, or added to the loss."""
    estimator: Literal["k1", "k2", "k3", "k3_straight", "exact"] = "k3"
    """Schulman's estimators; k3_straight has the value of k3 and the gradient of k2; exact: over the vocabulary."""
    coef: NonNegative = 0.0
    """Weight of the KL term."""
    ratio_weighted: bool = False
    """Multiply the estimate in the loss by the token ratio: unbiased when later steps are off policy."""


@dataclass(frozen=True)
class ControllerSpec:
    """Adapts `trust.coef` of kl_penalty, otherwise `kl.coef`, to the KL measured in each step's updates."""

    __pydantic_config__ = STRICT

    kind: Literal["fixed", "horizon", "band"] = "fixed"
    """`horizon` moves the coefficient slowly in proportion to the error; `band` halves or doubles it outside a band."""
    target: Positive = 0.1
    """KL aimed at, in nats a token."""
    horizon: Annotated[int, Field(gt=0)] = 10000
    """Rows after which `horizon` has moved the coefficient by at most a fifth."""
    band: Annotated[float, Field(ge=1)] = 2.0
    """`band` acts below target/band and above target x band (PPO's paper: 1.5)."""


@dataclass(frozen=True)
class EntropySpec:
    """Entropy bonus (axis 8)."""

    __pydantic_config__ = STRICT

    coef: NonNegative = 0.0
    """Weight of the mean entropy over loss tokens, subtracted from the loss."""


@dataclass(frozen=True)
class CorrectionSpec:
    """Correction of the mismatch between sampler and trainer (axis 9)."""

    __pydantic_config__ = STRICT

    kind: Literal["none", "truncate", "mask", "reject"] = "none"
    """exp(old - rollout) capped at `high` (TIS), or 0 outside [low, high] (`mask`, IcePop), or 0/1 so (`reject`)."""
    level: Literal["token", "sequence", "sequence_mean"] = "token"
    """Per token, product over the row, or geometric mean over the row."""
    low: NonNegative = 0.0
    """Smallest weight that `mask` and `reject` keep."""
    high: Positive = 2.0
    """Largest weight."""


@dataclass(frozen=True)
class FilterSpec:
    """Rows and groups that leave the update (axis 10)."""

    __pydantic_config__ = STRICT

    zero_variance: bool = False
    """Drop groups in which nothing differs from mask and normalisers."""
    zero_variance_on: Literal["outcome", "reward"] = "outcome"
    """What has to differ: the verifier's outcome (correct or not), or the reward with its shaping."""
    dynamic_sampling: bool = False
    """Sample further prompts until the batch has `policy.prompts_per_step` groups in which something differs."""
    max_rounds: Annotated[int, Field(gt=0)] = 10
    """Rounds of dynamic sampling a step."""
    when_short: Literal["train", "fail"] = "train"
    """After the last round: train with the groups there are, or stop the run."""
    carry_over: bool = False
    """Prompts of surplus groups are sampled anew in the next step, so that quick finishers are not preferred."""
    no_positive_resampling: Annotated[float, Field(gt=0, le=1)] | None = None
    """Prompts whose share of correct completions reaches this leave the epochs to come (ScaleRL: 0.9); null: off."""
    overlong_mask: bool = False
    """Take truncated rows out of the loss."""
    overlong_in_baseline: bool = True
    """Whether the reward of a row taken out by `overlong_mask` still counts in the baselines."""
    off_policy_mask: NonNegative | None = None
    """Rows whose mean of (rollout - current) log-probs is above this lose their negative advantages; null: off."""


@dataclass(frozen=True)
class ObjectiveSpec:
    """One objective: a choice on each axis. The defaults are GRPO without KL."""

    __pydantic_config__ = STRICT

    advantage: AdvantageSpec = field(default_factory=AdvantageSpec)
    critic: CriticSpec = field(default_factory=CriticSpec)
    ratio: RatioSpec = field(default_factory=RatioSpec)
    trust: TrustSpec = field(default_factory=TrustSpec)
    aggregate: Literal["sequence_mean", "sequence_sum", "token_mean", "prompt_mean", "constant"] = "sequence_mean"
    """How token terms become one loss."""
    constant_length: Annotated[int, Field(gt=0)] | None = None
    """L of `constant`: the loss is the sum over rows x L; unset: `rollout.max_new_tokens`."""
    kl: KlSpec = field(default_factory=KlSpec)
    controller: ControllerSpec = field(default_factory=ControllerSpec)
    entropy: EntropySpec = field(default_factory=EntropySpec)
    nll_coef: NonNegative = 0.0
    """Weight of the mean negative log-likelihood over the tokens of correct rows, added to the loss (VAPO: 0.1)."""
    correction: CorrectionSpec = field(default_factory=CorrectionSpec)
    filters: FilterSpec = field(default_factory=FilterSpec)
    minibatches: Annotated[int, Field(gt=0)] = 1
    """Optimizer steps in one pass over the batch."""
    epochs: Annotated[int, Field(gt=0)] = 1
    """Passes over the batch."""

    @property
    def num_steps(self) -> int:
        """Optimizer steps a rollout batch."""
        return self.minibatches * self.epochs

    @property
    def token_credit(self) -> bool:
        """Whether tokens of one row may have different advantages."""
        return self.advantage.credit != "outcome" or self.advantage.baseline == "critic"
