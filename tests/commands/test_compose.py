"""Composition: shell overrides, a user's own folder, a run's own file, and Hydra's errors turned into ours."""

import pytest

from rlvr.commands.compose import YamlSource, compose, parse, quoted
from rlvr.commands.train import configure
from rlvr.config_file import save_config
from rlvr.errors import ConfigError, RlvrError

SOURCE = YamlSource()


@pytest.fixture
def mine(tmp_path):
    """A user's folder with a recipe and a data set of his own; its name needs quoting."""
    folder = tmp_path / "my [recipes], 'new'"
    (folder / "recipe").mkdir(parents=True)
    (folder / "data").mkdir()
    (folder / "recipe" / "mine.yaml").write_text(
        "# @package _global_\n# Mine.\ndefaults:\n  - override /data: mine\n  - override /objective: dapo\nsteps: 7\n"
    )
    (folder / "data" / "mine.yaml").write_text("# Mine.\npath: mine.parquet\n")
    return folder


def test_values_are_overridden_with_and_without_plus():
    for steps in ("steps=7", "+steps=7", "++steps=7"):
        assert configure(["recipe=quickstart", steps], SOURCE).steps == 7


def test_the_shell_wins_over_the_recipe_and_the_recipe_over_the_group():
    composed = compose(["recipe=quickstart", "objective=dapo", "rollout.group_size=3"], SOURCE)
    assert composed.values["objective"]["trust"]["high"] == 0.28
    assert composed.values["rollout"]["group_size"] == 3
    assert composed.origins["rollout.group_size"] == "command line"
    assert composed.origins["objective.trust.high"] == "objective/dapo.yaml"
    assert composed.origins["steps"] == "recipe/quickstart.yaml"


def test_an_option_of_a_verifier_does_not_choose_it():
    config = configure(["recipe=quickstart", "verifier.format.gate=1", "verifier.math.cap=0.5"], SOURCE)
    assert (config.verifier["format"]["gate"], config.verifier["math"]["cap"]) == (1, 0.5)
    with pytest.raises(
        ConfigError, match=r"verifier.overlong.weight=2: .* choose it as well: .*\[math,format,overlong\]"
    ):
        configure(["recipe=quickstart", "verifier.overlong.weight=2"], SOURCE)
    assert "format" not in configure(["recipe=quickstart", "~verifier.format"], SOURCE).verifier


def test_a_run_is_named_after_its_recipe_unless_told_otherwise():
    assert configure(["recipe=quickstart"], SOURCE).name == "quickstart"
    assert configure(["recipe=quickstart", "name=mine"], SOURCE).name == "mine"


def test_interpolations_reach_defaults_that_no_file_sets():
    assert configure(["recipe=quickstart", "eval.limit=${checkpoint.every}"], SOURCE).eval.limit == 50


def test_the_engine_takes_the_policys_precision_unless_told_otherwise():
    assert configure(["recipe=quickstart", "policy=bfloat16"], SOURCE).rollout.dtype == "bfloat16"
    assert configure(["recipe=quickstart", "rollout.dtype=float16"], SOURCE).rollout.dtype == "float16"


def test_a_users_folder_adds_choices(mine):
    config = configure(["recipe=mine", "model=tiny"], YamlSource(config_dir=mine))
    assert (config.name, config.steps, config.data.path) == ("mine", 7, "mine.parquet")
    assert config.objective.aggregate == "token_mean"


def test_a_users_file_may_not_hide_one_of_ours(mine):
    (mine / "recipe" / "quickstart.yaml").write_text("# Mine.\n")
    with pytest.raises(ConfigError, match=r"its own recipe/quickstart\.yaml; rename yours"):
        compose(["recipe=mine"], YamlSource(config_dir=mine))


def test_a_runs_file_repeats_it_and_takes_values_but_no_groups(tmp_path):
    config = configure(["recipe=quickstart", "objective=cispo", "seed=5"], SOURCE)
    save_config(config, tmp_path)
    source = YamlSource(config_path=tmp_path)
    assert configure([], source) == config
    assert configure(["steps=9", "objective.trust.high=3"], source).steps == 9
    with pytest.raises(ConfigError, match="no group can be chosen again"):
        compose(["objective=grpo"], source)


def test_folders_that_are_not_there_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"--config-path=.*no config\.yaml"):
        compose([], YamlSource(config_path=tmp_path))
    with pytest.raises(ConfigError, match=r"--config-dir=.*no such folder"):
        compose([], YamlSource(config_dir=tmp_path / "nowhere"))


FILES = {
    "broken YAML": ("# @package _global_\nsteps: [\n", r"cannot be read: .*bad\.yaml"),
    "a list": ("- 1\n", r"bad\.yaml: its content must be a mapping"),
    "no package": ("steps: 3\n", "must begin with the line"),
    "an unknown choice": ("# @package _global_\ndefaults:\n  - override /model: nope\n", "Could not find 'model/nope'"),
    "an unknown key": ("# @package _global_\nrollot: {temperature: 1}\n", "rollot=.*did you mean rollout"),
    "an unknown nested key": ("# @package _global_\nrollout: {temprature: 1}\n", "did you mean rollout.temperature"),
    "a value for a group": ("# @package _global_\nrollout: 3\n", "rollout=3"),
    "an interpolation to nothing": ("# @package _global_\nsteps: ${nope}\n", "steps=.*nope"),
    "a missing value": ("# @package _global_\nname: ???\n", "name="),
}


@pytest.mark.parametrize(("content", "message"), FILES.values(), ids=list(FILES))
def test_what_is_wrong_in_a_users_recipe_is_said_in_one_line(content, message, tmp_path):
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "bad.yaml").write_text(content)
    with pytest.raises(RlvrError, match=message) as caught:
        configure(["recipe=bad"], YamlSource(config_dir=tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["plain", "a b", "it's", "a,b", "[x]", "${x}", "back\\slash", "a=b", "'", "1e-3", "ü"])
def test_quoted_text_is_read_as_it_is(text):
    (override,) = parse([f"name={quoted(text)}"])
    assert override.value() == text
