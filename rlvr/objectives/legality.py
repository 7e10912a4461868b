"""Which choices go together: every combination that is refused or warned of, with both keys and the mend. No torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from rlvr.errors import ConfigError
from rlvr.objectives.spec import AdvantageSpec, CriticSpec, ObjectiveSpec


@dataclass(frozen=True)
class Setting:
    """A spec with what legality needs to know of the rest of the run; None = unknown, not checked."""

    objective: ObjectiveSpec
    group_size: int | None = None
    top_p: float | None = None


@dataclass(frozen=True)
class Rule:
    """A combination that is refused, or only warned of."""

    key: str
    """The key whose value is shown."""
    broken: Callable[[Setting], bool]
    why: str
    """Names the other key and the mend."""

    def value(self, setting: Setting) -> object:
        return attrgetter(self.key.removeprefix("objective."))(setting.objective)


GROUP_BASELINES = {"group_mean", "leave_one_out"}
TOKEN_SCALES = {"none", "whiten_tokens"}

BOUNDED = {"clip", "weight_clip", "divergence_mask", "geo_mean", "clip_cov"}

# Key -> (the key that decides whether it is read, the values that do).
READ_BY: dict[str, tuple[str, set[Any]]] = {
    "trust.low": ("trust.kind", BOUNDED),
    "trust.high": ("trust.kind", BOUNDED),
    "trust.divergence": ("trust.kind", {"divergence_mask"}),
    "trust.top_k": ("trust.divergence", {"topk_tv", "topk_kl"}),
    "trust.cap": ("trust.kind", {"divergence_mask"}),
    "trust.tau_positive": ("trust.kind", {"soft_gate"}),
    "trust.tau_negative": ("trust.kind", {"soft_gate"}),
    "trust.coef": ("trust.kind", {"kl_penalty", "kl_cov"}),
    "trust.cov_share": ("trust.kind", {"clip_cov", "kl_cov"}),
    "trust.cov_low": ("trust.kind", {"clip_cov"}),
    "trust.cov_high": ("trust.kind", {"clip_cov"}),
    "controller.target": ("controller.kind", {"horizon", "band"}),
    "controller.horizon": ("controller.kind", {"horizon"}),
    "controller.band": ("controller.kind", {"band"}),
    "constant_length": ("aggregate", {"constant"}),
    "filters.max_rounds": ("filters.dynamic_sampling", {True}),
    "filters.when_short": ("filters.dynamic_sampling", {True}),
    "filters.carry_over": ("filters.dynamic_sampling", {True}),
    **{f"critic.{option.name}": ("advantage.baseline", {"critic"}) for option in fields(CriticSpec)},
}


def _unread(key: str, other: str, values: set[Any]) -> Rule:
    value, decides = attrgetter(key), attrgetter(other)
    return Rule(
        f"objective.{key}",
        lambda s: decides(s.objective) not in values and value(s.objective) != value(ObjectiveSpec()),
        f"is read by objective.{other}={' or '.join(sorted(map(str, values))).lower()} only",
    )


REFUSED = [
    Rule(
        "objective.trust.kind",
        lambda s: s.objective.ratio.level == "none" and s.objective.trust.kind != "none",
        "needs a ratio, but objective.ratio.level='none'; set objective.trust.kind=none or objective.ratio.level=token",
    ),
    Rule(
        "objective.trust.dual",
        lambda s: s.objective.trust.dual is not None and s.objective.trust.kind not in {"clip", "clip_cov"},
        "is part of objective.trust.kind='clip' or 'clip_cov'; set one, or objective.trust.dual=null",
    ),
    Rule(
        "objective.trust.kind",
        lambda s: s.objective.trust.kind == "geo_mean" and s.objective.token_credit,
        "takes one advantage a row, but objective.advantage.credit or objective.advantage.baseline='critic' gives one "
        "a token; set objective.advantage.credit=outcome and another baseline, or objective.trust.kind=clip",
    ),
    Rule(
        "objective.trust.kind",
        lambda s: s.objective.trust.kind == "geo_mean" and s.objective.ratio.level != "token",
        "takes its own mean over the row; set objective.ratio.level=token",
    ),
    Rule(
        "objective.trust.divergence",
        lambda s: (
            s.objective.trust.kind == "divergence_mask"
            and s.objective.trust.divergence.startswith("topk_")
            and s.objective.ratio.anchor != "rollout"
        ),
        "is over the sampler's likeliest tokens; set objective.ratio.anchor=rollout, or divergence=tv or kl",
    ),
    Rule(
        "objective.trust.cov_low",
        lambda s: s.objective.trust.kind == "clip_cov" and s.objective.trust.cov_low >= s.objective.trust.cov_high,
        "must be below objective.trust.cov_high, or no token is dropped",
    ),
    Rule(
        "objective.advantage.scale",
        lambda s: s.objective.advantage.baseline == "critic" and s.objective.advantage.scale not in TOKEN_SCALES,
        "compares rows, but objective.advantage.baseline='critic' gives each token its own advantage; "
        "set objective.advantage.scale=none or whiten_tokens",
    ),
    Rule(
        "objective.advantage.credit",
        lambda s: s.objective.advantage.baseline == "critic" and s.objective.advantage.credit == "discounted",
        "is what objective.advantage.baseline='critic' does already by objective.advantage.gamma; "
        "set objective.advantage.credit=outcome",
    ),
    Rule(
        "objective.advantage.credit",
        lambda s: (
            s.objective.advantage.credit == "process"
            and s.objective.kl.placement == "reward"
            and s.objective.kl.coef > 0
        ),
        "compares step rewards, which objective.kl.placement='reward' is no part of; set objective.kl.placement=loss",
    ),
    Rule(
        "objective.advantage.success_order",
        lambda s: (
            s.objective.advantage.success_order is not None
            and (s.objective.advantage.scale, s.objective.advantage.baseline) != ("success_rate", "none")
        ),
        "weighs successes under objective.advantage.scale=success_rate with objective.advantage.baseline=none; "
        "set both, or success_order=null",
    ),
    Rule(
        "objective.advantage.success_order",
        lambda s: s.group_size is not None and (s.objective.advantage.success_order or 0) > s.group_size,
        "draws so many of the group's completions; it can be rollout.group_size at most",
    ),
    Rule(
        "objective.correction.kind",
        lambda s: s.objective.ratio.anchor == "rollout" and s.objective.correction.kind != "none",
        "counts the mismatch twice with objective.ratio.anchor='rollout'; "
        "set objective.correction.kind=none or objective.ratio.anchor=old",
    ),
    Rule(
        "objective.correction.low",
        lambda s: s.objective.correction.low > 0 and s.objective.correction.kind not in {"mask", "reject"},
        "is read by objective.correction.kind='mask' and 'reject' only; set one, or objective.correction.low=0",
    ),
    Rule(
        "objective.correction.low",
        lambda s: s.objective.correction.low >= s.objective.correction.high,
        "must be below objective.correction.high, or no token is kept",
    ),
    Rule(
        "objective.kl.coef",
        lambda s: s.objective.kl.coef > 0 and s.objective.kl.placement == "none",
        "has no effect with objective.kl.placement='none'; set objective.kl.placement=loss or reward, or the coef to 0",
    ),
    Rule(
        "objective.advantage.scale",
        lambda s: (
            s.objective.advantage.scale == "success_rate"
            and s.objective.kl.placement == "reward"
            and s.objective.kl.coef > 0
        ),
        "needs rewards >= 0, and objective.kl.placement='reward' makes negative ones; set objective.kl.placement=loss",
    ),
    Rule(
        "objective.kl.estimator",
        lambda s: s.objective.kl.estimator == "exact" and s.objective.kl.placement == "reward",
        "is taken in the loss's own forward; set objective.kl.placement=loss, or objective.kl.estimator=k1",
    ),
    Rule(
        "objective.kl.ratio_weighted",
        lambda s: s.objective.kl.ratio_weighted and s.objective.kl.placement != "loss",
        "corrects the estimate in the loss; set objective.kl.placement=loss, or ratio_weighted=false",
    ),
    Rule(
        "objective.kl.ratio_weighted",
        lambda s: s.objective.kl.ratio_weighted and s.objective.kl.estimator == "exact",
        "corrects sampled estimates, and objective.kl.estimator='exact' is none; set ratio_weighted=false",
    ),
    Rule(
        "objective.kl.ratio_weighted",
        lambda s: s.objective.kl.ratio_weighted and s.objective.ratio.level == "none",
        "needs a ratio, but objective.ratio.level='none'; set objective.ratio.level=token, or ratio_weighted=false",
    ),
    Rule(
        "objective.controller.kind",
        lambda s: (
            s.objective.controller.kind != "fixed"
            and s.objective.trust.kind != "kl_penalty"
            and s.objective.kl.coef == 0
        ),
        "multiplies a coefficient of 0; set objective.kl.coef above 0, or objective.trust.kind=kl_penalty",
    ),
    Rule(
        "objective.controller.kind",
        lambda s: (
            s.objective.controller.kind != "fixed"
            and s.objective.trust.kind == "kl_penalty"
            and s.objective.trust.coef == 0
        ),
        "multiplies a coefficient of 0; set objective.trust.coef above 0",
    ),
    Rule(
        "objective.advantage.baseline",
        lambda s: s.group_size == 1 and s.objective.advantage.baseline in GROUP_BASELINES,
        "compares the completions of one prompt, but rollout.group_size=1; "
        "set rollout.group_size to 2 or more, or objective.advantage.baseline=batch_mean",
    ),
    Rule(
        "objective.advantage.scale",
        lambda s: s.group_size == 1 and s.objective.advantage.scale == "group_std",
        "is 0 for a group of one, and rollout.group_size=1; "
        "set rollout.group_size to 2 or more, or objective.advantage.scale=batch_std",
    ),
    Rule(
        "objective.filters.zero_variance",
        lambda s: s.group_size == 1 and s.objective.filters.zero_variance,
        "drops every group of one, and rollout.group_size=1; set rollout.group_size to 2 or more, or the filter off",
    ),
    Rule(
        "objective.filters.dynamic_sampling",
        lambda s: s.group_size == 1 and s.objective.filters.dynamic_sampling,
        "finds no signal in a group of one, and rollout.group_size=1; set rollout.group_size to 2 or more, or it off",
    ),
    Rule(
        "objective.filters.dynamic_sampling",
        lambda s: s.objective.filters.dynamic_sampling and s.objective.filters.zero_variance,
        "implies objective.filters.zero_variance=True; set one of them to false",
    ),
    Rule(
        "objective.ratio.level",
        lambda s: s.top_p is not None and s.top_p < 1 and s.objective.ratio.level != "none",
        "is not defined for rollout.top_p below 1, which cuts the distribution; "
        "set rollout.top_p=1 or objective.ratio.level=none with objective.trust.kind=none",
    ),
    Rule(
        "objective.correction.kind",
        lambda s: s.top_p is not None and s.top_p < 1 and s.objective.correction.kind != "none",
        "is not defined for rollout.top_p below 1, which cuts the distribution; "
        "set rollout.top_p=1 or objective.correction.kind=none",
    ),
    Rule(
        "objective.filters.off_policy_mask",
        lambda s: s.top_p is not None and s.top_p < 1 and s.objective.filters.off_policy_mask is not None,
        "is not defined for rollout.top_p below 1, which cuts the distribution; set rollout.top_p=1 or it to null",
    ),
]

WARNED = [
    Rule(
        "objective.kl.estimator",
        lambda s: s.objective.kl.placement == "loss" and s.objective.kl.estimator == "k1",
        "has an expected gradient of 0 with objective.kl.placement='loss': noise only; set objective.kl.estimator=k3",
    ),
    Rule(
        "objective.kl.estimator",
        lambda s: s.objective.kl.placement == "reward" and s.objective.kl.estimator != "k1",
        "gives a biased gradient with objective.kl.placement='reward'; set objective.kl.estimator=k1",
    ),
    Rule(
        "objective.ratio.level",
        lambda s: (
            s.objective.ratio.level in {"sequence", "sequence_product"} and s.objective.aggregate != "sequence_mean"
        ),
        "counts a row once a token unless objective.aggregate='sequence_mean'; set that",
    ),
    Rule(
        "objective.trust.kind",
        lambda s: s.objective.trust.kind == "geo_mean" and s.objective.aggregate != "sequence_mean",
        "counts a row once a token unless objective.aggregate='sequence_mean'; set that",
    ),
    Rule(
        "objective.trust.kind",
        lambda s: s.objective.trust.kind in {"kl_penalty", "kl_cov"} and s.objective.num_steps == 1,
        "has nothing to hold in the only step on a batch; set objective.minibatches or objective.epochs above 1",
    ),
    Rule(
        "objective.ratio.level",
        lambda s: s.objective.ratio.level == "none" and s.objective.num_steps > 1,
        "leaves later steps off policy: objective.minibatches x objective.epochs is above 1; "
        "set both to 1 or objective.ratio.level=token",
    ),
    Rule(
        "objective.ratio.anchor",
        lambda s: s.objective.ratio.level == "none" and s.objective.ratio.anchor == "rollout",
        "is not read with objective.ratio.level='none'",
    ),
    Rule(
        "objective.aggregate",
        lambda s: (
            s.objective.advantage.scale == "success_rate" and s.objective.aggregate not in {"sequence_sum", "constant"}
        ),
        "weighs rows by length, so objective.advantage.scale='success_rate' is no longer MaxRL's gradient; "
        "set objective.aggregate=sequence_sum",
    ),
    Rule(
        "objective.advantage.gamma",
        lambda s: (
            s.objective.advantage.gamma != AdvantageSpec().gamma
            and s.objective.advantage.baseline != "critic"
            and s.objective.advantage.credit != "discounted"
        ),
        "is read by objective.advantage.credit='discounted' and objective.advantage.baseline='critic' only",
    ),
    Rule(
        "objective.filters.zero_variance",
        lambda s: s.objective.filters.zero_variance and s.objective.advantage.baseline not in GROUP_BASELINES,
        "drops groups that carry signal unless objective.advantage.baseline is group_mean or leave_one_out",
    ),
    Rule(
        "objective.filters.dynamic_sampling",
        lambda s: s.objective.filters.dynamic_sampling and s.objective.advantage.baseline not in GROUP_BASELINES,
        "drops groups that carry signal unless objective.advantage.baseline is group_mean or leave_one_out",
    ),
    *(_unread(key, other, values) for key, (other, values) in READ_BY.items()),
]


def check(spec: ObjectiveSpec, *, group_size: int | None = None, top_p: float | None = None) -> list[str]:
    """Whether the choices of a spec go together.

    Args:
        spec: validated by itself.
        group_size: completions per prompt, where known.
        top_p: nucleus of the sampler, where known.

    Returns:
        Warnings, one line each: legal, but hardly meant.

    Raises:
        ConfigError: the first contradiction; it names both keys and the mend.
    """
    setting = Setting(spec, group_size, top_p)
    for rule in REFUSED:
        if rule.broken(setting):
            raise ConfigError(rule.key, rule.value(setting), rule.why)
    return [f"{rule.key}={rule.value(setting)!r}: {rule.why}" for rule in WARNED if rule.broken(setting)]
