import re
import subprocess
import sys
from operator import attrgetter
from typing import get_args, get_type_hints

import pytest

from rlvr.errors import ConfigError
from rlvr.objectives import (
    advantages,
    aggregation,
    build,
    check,
    controllers,
    correction,
    covariance,
    credit,
    divergence,
    kl,
    ratios,
    trust_region,
)
from rlvr.objectives.legality import READ_BY
from rlvr.objectives.spec import (
    PICKING,
    TOP_K,
    AdvantageSpec,
    ControllerSpec,
    CorrectionSpec,
    KlSpec,
    ObjectiveSpec,
    RatioSpec,
    TrustSpec,
)
from rlvr.validation import validate

from . import presets


@pytest.mark.parametrize(
    ("table", "options", "key"),
    [
        (advantages.BASELINES, AdvantageSpec, "baseline"),
        (advantages.SCALES, AdvantageSpec, "scale"),
        (ratios.LEVELS, RatioSpec, "level"),
        (trust_region.KINDS, TrustSpec, "kind"),
        (aggregation.AGGREGATES, ObjectiveSpec, "aggregate"),
        (credit.CREDITS, AdvantageSpec, "credit"),
        (divergence.DIVERGENCES, TrustSpec, "divergence"),
        (controllers.CONTROLLERS, ControllerSpec, "kind"),
        ({*kl.ESTIMATORS, "exact"}, KlSpec, "estimator"),
        (correction.KINDS, CorrectionSpec, "kind"),
        (correction.LEVELS, CorrectionSpec, "level"),
    ],
)
def test_every_name_of_the_spec_is_in_its_table_and_no_other(table, options, key):
    assert set(table) == set(get_args(get_type_hints(options)[key]))


def test_the_smaller_tables_name_values_of_the_spec():
    kinds = set(get_args(get_type_hints(TrustSpec)["kind"]))
    assert set(covariance.PICKS) == PICKING < kinds
    assert set(divergence.DIVERGENCES) > TOP_K
    assert set(credit.REWARDS) < set(credit.CREDITS)
    for key, (other, values) in READ_BY.items():
        attrgetter(key)(ObjectiveSpec())
        *section, name = other.split(".")
        owner = get_type_hints(ObjectiveSpec)[section[0]] if section else ObjectiveSpec
        hint = get_type_hints(owner)[name]
        assert values <= ({True, False} if hint is bool else set(get_args(hint)))


@pytest.mark.parametrize("name", presets.NAMES)
def test_every_preset_builds_without_a_warning_and_names_its_source(name):
    objective = build(presets.load(name))
    assert check(objective.spec, group_size=8, top_p=1.0) == []
    head = (presets.FOLDER / f"{name}.yaml").read_text()
    assert re.search(r"^# Source: ", head, re.M)
    assert re.search(r"^# Differs from ", head, re.M)


def test_the_defaults_are_grpo_without_kl():
    grpo = presets.load("grpo")
    del grpo["kl"]
    assert validate(ObjectiveSpec, grpo) == ObjectiveSpec()


def test_spec_and_config_do_not_import_torch():
    code = "import sys, rlvr.objectives.spec, rlvr.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


CRITIC = {"advantage": {"baseline": "critic"}}  # with the default group_std

REFUSED = [
    ({"ratio": {"level": "none"}}, {}, "trust.kind", "ratio.level"),
    ({"trust": {"kind": "weight_clip", "dual": 3.0}}, {}, "trust.dual", "trust.kind"),
    (
        {"ratio": {"anchor": "rollout"}, "correction": {"kind": "truncate"}},
        {},
        "correction.kind",
        "ratio.anchor",
    ),
    ({"correction": {"kind": "truncate", "low": 0.5}}, {}, "correction.low", "correction.kind"),
    ({"correction": {"kind": "mask", "low": 3.0}}, {}, "correction.low", "correction.high"),
    ({"kl": {"coef": 0.1}}, {}, "kl.coef", "kl.placement"),
    (CRITIC, {}, "advantage.scale", "advantage.baseline"),
    (
        {"advantage": {"baseline": "critic", "scale": "none", "credit": "discounted"}},
        {},
        "advantage.credit",
        "advantage.baseline",
    ),
    (
        {"advantage": {"credit": "process"}, "kl": {"placement": "reward", "estimator": "k1", "coef": 0.1}},
        {},
        "advantage.credit",
        "kl.placement",
    ),
    ({"trust": {"kind": "geo_mean"}, "advantage": {"credit": "process"}}, {}, "trust.kind", "advantage.credit"),
    (
        {"trust": {"kind": "geo_mean"}, "advantage": {"baseline": "critic", "scale": "none"}},
        {},
        "trust.kind",
        "advantage.baseline",
    ),
    ({"trust": {"kind": "geo_mean"}, "ratio": {"level": "sequence"}}, {}, "trust.kind", "ratio.level"),
    (
        {"trust": {"kind": "divergence_mask", "divergence": "topk_tv"}},
        {},
        "trust.divergence",
        "ratio.anchor",
    ),
    ({"trust": {"kind": "clip_cov", "cov_low": 5.0}}, {}, "trust.cov_low", "trust.cov_high"),
    (
        {"advantage": {"scale": "success_rate", "success_order": 2}},
        {},
        "advantage.success_order",
        "advantage.baseline",
    ),
    (
        {"advantage": {"baseline": "none", "scale": "success_rate", "success_order": 9}},
        {"group_size": 8},
        "advantage.success_order",
        "rollout.group_size",
    ),
    (
        {"kl": {"placement": "reward", "estimator": "exact", "coef": 0.1}},
        {},
        "kl.estimator",
        "kl.placement",
    ),
    ({"kl": {"ratio_weighted": True}}, {}, "kl.ratio_weighted", "kl.placement"),
    (
        {"kl": {"placement": "loss", "estimator": "exact", "ratio_weighted": True}},
        {},
        "kl.ratio_weighted",
        "kl.estimator",
    ),
    (
        {"kl": {"placement": "loss", "ratio_weighted": True}, "ratio": {"level": "none"}, "trust": {"kind": "none"}},
        {},
        "kl.ratio_weighted",
        "ratio.level",
    ),
    ({"controller": {"kind": "band"}}, {}, "controller.kind", "kl.coef"),
    (
        {"controller": {"kind": "band"}, "trust": {"kind": "kl_penalty", "coef": 0.0}},
        {},
        "controller.kind",
        "trust.coef",
    ),
    ({"ratio": {"level": "none"}, "trust": {"kind": "soft_gate"}}, {}, "trust.kind", "ratio.level"),
    (
        {"ratio": {"anchor": "rollout"}, "correction": {"kind": "reject"}},
        {},
        "correction.kind",
        "ratio.anchor",
    ),
    (
        {"ratio": {"level": "none"}, "trust": {"kind": "none"}, "filters": {"off_policy_mask": 0.5}},
        {"top_p": 0.9},
        "filters.off_policy_mask",
        "rollout.top_p",
    ),
    (
        {"advantage": {"scale": "success_rate"}, "kl": {"placement": "reward", "estimator": "k1", "coef": 0.1}},
        {},
        "advantage.scale",
        "kl.placement",
    ),
    ({"advantage": {"baseline": "leave_one_out"}}, {"group_size": 1}, "advantage.baseline", "rollout.group_size"),
    (
        {"advantage": {"baseline": "batch_mean", "scale": "group_std"}},
        {"group_size": 1},
        "advantage.scale",
        "rollout.group_size",
    ),
    (
        {"advantage": {"baseline": "none", "scale": "none"}, "filters": {"zero_variance": True}},
        {"group_size": 1},
        "filters.zero_variance",
        "rollout.group_size",
    ),
    ({}, {"top_p": 0.9}, "ratio.level", "rollout.top_p"),
    (
        {"ratio": {"level": "none"}, "trust": {"kind": "none"}, "correction": {"kind": "truncate"}},
        {"top_p": 0.9},
        "correction.kind",
        "rollout.top_p",
    ),
]


@pytest.mark.parametrize(("values", "run", "key", "other"), REFUSED)
def test_a_contradiction_is_refused_naming_both_keys(values, run, key, other):
    spec = validate(ObjectiveSpec, values)
    with pytest.raises(ConfigError) as caught:
        check(spec, **run)
    assert caught.value.key == f"objective.{key}"
    assert other in str(caught.value)
    if not run:
        with pytest.raises(ConfigError):
            build(values)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"kl": {"placement": "loss", "estimator": "k1", "coef": 0.1}}, "kl.estimator"),
        ({"kl": {"placement": "reward", "estimator": "k3", "coef": 0.1}}, "kl.estimator"),
        ({"ratio": {"level": "sequence"}, "aggregate": "token_mean"}, "aggregate"),
        ({"ratio": {"level": "none"}, "trust": {"kind": "none"}, "epochs": 2}, "epochs"),
        ({"ratio": {"level": "none", "anchor": "rollout"}, "trust": {"kind": "none"}}, "ratio.anchor"),
        ({"constant_length": 5}, "constant_length"),
        ({"advantage": {"scale": "success_rate"}}, "MaxRL"),
        ({"trust": {"kind": "kl_penalty"}}, "epochs"),
        ({"trust": {"kind": "geo_mean"}, "aggregate": "token_mean"}, "aggregate"),
        ({"trust": {"kind": "soft_gate", "high": 0.3}}, "trust.high"),
        ({"trust": {"kind": "divergence_mask", "top_k": 5}}, "trust.top_k"),
        ({"advantage": {"gamma": 0.9}}, "gamma"),
        ({"critic": {"warmup_steps": 5}}, "critic.warmup_steps"),
        ({"controller": {"target": 0.5}}, "controller.target"),
        ({"advantage": {"baseline": "batch_mean"}, "filters": {"zero_variance": True}}, "zero_variance"),
    ],
)
def test_what_is_hardly_meant_is_warned_of(values, word):
    assert any(word in warning for warning in check(validate(ObjectiveSpec, values)))


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"trust": {"kind": "clipp"}}, "objective.trust.kind"),
        ({"trust": {"hihg": 0.3}}, "objective.trust.hihg"),
        ({"trust": {"low": -0.1}}, "objective.trust.low"),
        ({"minibatches": 0}, "objective.minibatches"),
        ({"advantage": {"eps": "small"}}, "objective.advantage.eps"),
    ],
)
def test_a_wrong_key_type_or_range_is_named(values, key):
    with pytest.raises(ConfigError) as caught:
        build(values)
    assert caught.value.key == key


def test_constant_length_is_the_longest_completion_unless_set():
    assert build({"aggregate": "constant"}, max_new_tokens=9).spec.constant_length == 9
    assert build({"aggregate": "constant", "constant_length": 5}, max_new_tokens=9).spec.constant_length == 5
