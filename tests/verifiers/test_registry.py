"""Verifiers by name."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rlvr.errors import ConfigError
from rlvr.validation import flat_fields
from rlvr.verifiers.registry import build, check, names, verifier_class

RECIPES = Path(__file__).parents[2] / "recipes" / "verifier"


def test_every_verifier_has_a_recipe_under_its_own_name_and_the_other_way_round():
    files = {path.stem: yaml.safe_load(path.read_text()) for path in RECIPES.glob("*.yaml")}
    assert sorted(files) == names() == ["code", "format", "math", "overlong"]
    assert {name: list(content) for name, content in files.items()} == {name: [name] for name in names()}


@pytest.mark.parametrize("name", names())
def test_every_option_has_a_meaning_and_a_default(name):
    options = flat_fields(verifier_class(name))
    assert "weight" in [key for key, *_ in options]
    assert [key for key, _, _, meaning in options if not meaning] == []
    assert build({name: None}).verifiers[name] == verifier_class(name)()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "verifier={}: name at least one of: code, format, math, overlong"),
        ({"mth": {}}, "verifier='mth': there is no such verifier; did you mean math?"),
        ({"base": {}}, "verifier='base': there is no such verifier"),
        ({"math": {"wight": 1.0}}, "verifier.math.wight=1.0: there is no such key; did you mean weight?"),
        ({"math": {"weight": "1"}}, "verifier.math.weight='1': .*number"),
        ({"math": {"weight": float("nan")}}, "verifier.math.weight=nan: .*finite"),
        ({"math": {"thinking": "maybe"}}, "verifier.math.thinking='maybe': .*'optional', 'required' or 'searched'"),
        ({"math": 3}, "verifier.math=3: give a mapping of options"),
    ],
)
def test_wrong_options_are_named_with_their_mend(options, message):
    with pytest.raises(ConfigError, match=message):
        check(options)


def test_checking_options_imports_nothing_heavy():
    code = (
        "import sys; from rlvr.verifiers.registry import check, names; check({name: {} for name in names()}); "
        "print([name for name in ('sympy', 'math_verify', 'numpy', 'torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
