"""Verifiers by name."""

import subprocess
import sys
from dataclasses import MISSING
from pathlib import Path

import pytest
import yaml

from rlvr.errors import ConfigError
from rlvr.validation import flat_fields
from rlvr.verifiers.registry import build, check, names, verifier_class

RECIPES = Path(__file__).parents[2] / "recipes" / "verifier"
# What has no default.
REQUIRED = {
    "judge": {"url": "http://localhost:8000/v1", "model": "m"},
    "python": {"path": f"{Path(__file__).parent / 'rewards.py'}:trl_reward"},
    "reward_model": {"path": "owner/model"},
    "prime_intellect": {"environment": "any"},
}


def test_every_verifier_has_a_recipe_under_its_own_name_and_the_other_way_round():
    files = {path.stem: yaml.safe_load(path.read_text()) for path in RECIPES.glob("*.yaml")}
    assert sorted(files) == names()
    assert {name: list(content) for name, content in files.items()} == {name: [name] for name in names()}


def test_the_readme_has_a_row_for_every_verifier():
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert [name for name in names() if f"\n| `{name}` | " not in readme] == []


@pytest.mark.parametrize("name", names())
def test_every_option_has_a_meaning_and_all_but_the_required_ones_a_default(name):
    options = flat_fields(verifier_class(name))
    assert "weight" in [key for key, *_ in options]
    assert [key for key, _, _, meaning in options if not meaning] == []
    required = REQUIRED.get(name, {})
    assert [key for key, _, default, _ in options if default is MISSING] == list(required)
    assert build({name: required}).verifiers[name] == verifier_class(name)(**required)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "verifier={}: name at least one of: arithmetic_steps, "),
        ({"mth": {}}, "verifier='mth': there is no such verifier; did you mean math?"),
        ({"base": {}}, "verifier='base': there is no such verifier"),
        ({"math": {"wight": 1.0}}, "verifier.math.wight=1.0: there is no such key; did you mean weight?"),
        ({"math": {"weight": "1"}}, "verifier.math.weight='1': .*number"),
        ({"math": {"weight": float("nan")}}, "verifier.math.weight=nan: .*finite"),
        ({"math": {"thinking": "maybe"}}, "verifier.math.thinking='maybe': .*'optional', 'required' or 'searched'"),
        ({"math": {"gate": True}, "format": {}}, "verifier.math.gate=True: .*number"),
        ({"math": {"cap": 0}}, "verifier.math.cap=0: should be greater than 0"),
        ({"math": {"gate": 1}}, "verifier.math.gate=1.0: there is no other verifier to hold back"),
        ({"math": 3}, "verifier.math=3: give a mapping of options"),
    ],
)
def test_wrong_options_are_named_with_their_mend(options, message):
    with pytest.raises(ConfigError, match=message):
        check(options)


def test_checking_options_imports_nothing_heavy():
    code = (
        "import sys; from rlvr.verifiers.registry import check, names; "
        f"required = {REQUIRED}; check({{name: required.get(name, {{}}) for name in names()}}); "
        "print([name for name in ('sympy', 'math_verify', 'numpy', 'torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
