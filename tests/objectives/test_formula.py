from dataclasses import asdict
from operator import attrgetter
from typing import Literal, get_args, get_origin

import pytest

from rlvr.errors import ConfigError
from rlvr.objectives import check
from rlvr.objectives.formula import FRAGMENTS, equations, left_out, symbols
from rlvr.objectives.spec import ObjectiveSpec
from rlvr.validation import flat_fields, validate

from . import presets

KEYS = {key: hint for key, hint, _, _ in flat_fields(ObjectiveSpec)}
LITERALS = {key: set(get_args(hint)) for key, hint in KEYS.items() if get_origin(hint) is Literal}


def spec_of(values):
    return validate(ObjectiveSpec, values, "objective")


def text_of(spec):
    return "\n".join([*(f"{left} = {right}" for left, right in equations(spec)), *left_out(spec)])


def test_every_value_of_every_axis_has_a_fragment():
    assert {key: set(fragments) for key, fragments in FRAGMENTS.items()} == LITERALS


def test_grpo_in_full():
    assert equations(spec_of(presets.load("grpo"))) == [
        ("loss", "1/B Σ_i 1/|y_i| Σ_t x"),
        ("x", "-min(ρ A, clip(ρ, 1 - 0.2, 1 + 0.2) A) + 0.04 × KL"),
        ("ρ", "π / π_old"),
        ("A", "(r - mean_g) / (std_g + 1e-08), 0 where the group's r are all equal"),
        ("KL", "exp(D) - D - 1"),
        ("D", "log(π_ref / π)"),
    ]
    names = [name for name, _ in symbols(spec_of(presets.load("grpo")))]
    assert names == ["B", "|y_i|", "r", "mean_g", "std_g", "π", "π_old", "π_ref"]


def test_the_order_is_outer_before_inner():
    names = [name for name, _ in equations(spec_of(presets.load("reinforce_pp")))]
    assert names == ["loss", "x", "ρ", "A", "c", "R_t", "a", "KL", "D"]


@pytest.mark.parametrize("name", presets.NAMES)
def test_every_preset_defines_each_symbol_once(name):
    spec = spec_of(presets.load(name))
    defined = [left for left, _ in equations(spec)]
    assert len(set(defined)) == len(defined)
    assert not set(defined) & {symbol for symbol, _ in symbols(spec)}


# Beside the presets: what none of them has.
CONTEXTS = [
    *map(presets.load, presets.NAMES),
    {"kl": {"placement": "loss", "coef": 0.1}, "controller": {"kind": "horizon"}},
    {"correction": {"kind": "mask", "low": 0.5}},
    {"entropy": {"coef": 0.01}},
    {"filters": {"zero_variance": True, "overlong_mask": True}},
    {"filters": {"dynamic_sampling": True, "carry_over": True}},
]
# Plain numbers to put in a key's place; those out of its range are refused and passed over.
NUMBERS = [None, True, False, 0, 1, 0.37, 0.73, 1.37, 3, 5]
# With a coefficient above 0 no placement is refused; with 0 every placement is the same.
ONLY_WITHOUT_EFFECT = {"kl.placement": {"none"}}
NO_PART_OF_THE_FORMULA = {"minibatches", "epochs"}


def changed(values, key, value):
    section, _, name = key.rpartition(".")
    return {**values, section: {**values[section], name: value}} if section else {**values, name: value}


def legal(values):
    try:
        spec = spec_of(values)
        check(spec)
    except ConfigError:
        return None
    return spec


COMPLETE = [asdict(spec_of(values)) for values in CONTEXTS]


@pytest.mark.parametrize("key", sorted(set(KEYS) - NO_PART_OF_THE_FORMULA))
def test_no_key_can_change_the_loss_and_not_the_formula(key):
    """Each value of a key, where it is read, is told from the others."""
    wanted = LITERALS.get(key)
    seen = set()
    for values in COMPLETE:
        texts = {}
        for value in wanted or NUMBERS:
            spec = legal(changed(values, key, value))
            if spec is not None:
                texts[attrgetter(key)(spec)] = text_of(spec)
        if len(set(texts.values())) == len(texts):
            seen |= set(texts)
    assert seen >= wanted - ONLY_WITHOUT_EFFECT.get(key, set()) if wanted else len(seen) > 1


def test_all_legal_pairs_of_choices_compose():
    axes = sorted(LITERALS)
    start = asdict(spec_of({"kl": {"coef": 0.1, "placement": "loss"}}))
    for i, one in enumerate(axes):
        for other in axes[i + 1 :]:
            for a in LITERALS[one]:
                for b in LITERALS[other]:
                    spec = legal(changed(changed(start, one, a), other, b))
                    assert spec is None or not set("{}") & set(text_of(spec))
