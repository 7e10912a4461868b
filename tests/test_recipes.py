"""Every recipe and every choice of every group composes, validates and says where it comes from."""

import re
from pathlib import Path

import pytest
import yaml

from rlvr import cli
from rlvr.commands import recipes as command
from rlvr.commands.compose import RECIPES, YamlSource, compose
from rlvr.config import TrainConfig
from rlvr.config_checks import check_across, train_config
from rlvr.errors import ConfigError
from rlvr.validation import flat_fields
from rlvr.verifiers import registry
from rlvr.verifiers.base import Case

SOURCE = YamlSource()
NAMES = list(SOURCE.choices("recipe"))
CHOICES = [(group, name) for group in SOURCE.groups() if group != "recipe" for name in SOURCE.choices(group)]
REQUIRED = {
    "verifier=judge": ["verifier.judge.url=http://localhost:8000/v1", "verifier.judge.model=m"],
    "verifier=prime_intellect": ["verifier.prime_intellect.environment=any"],
    "data=prime_intellect": ["data.path=prime_intellect:any"],
    "verifier=reward_model": ["verifier.reward_model.path=owner/model"],
    "verifier=python": [f"verifier.python.path={Path(__file__).parent}/verifiers/rewards.py:trl_reward"],
}
SHARED = Path(__file__).parents[1].parent / "shared" / "data"


def configure(*overrides: str) -> TrainConfig:
    return train_config(compose(list(overrides), SOURCE).values)


def test_the_recipes_of_the_plan_are_there():
    assert set(NAMES) >= {
        "quickstart",
        "smollm2_arithmetic",
        "grpo_gsm8k",
        "dapo_math",
        "drgrpo_math",
        "cispo_math",
        "rloo_gsm8k",
        "reinforce_gsm8k",
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_composes_validates_and_warns_of_nothing(name):
    config = configure(f"recipe={name}")
    assert config.name == name
    assert check_across(config) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_begins_with_one_sentence_and_its_source(name):
    head = command.head_comment(SOURCE.choices("recipe")[name])
    assert head[0].endswith((".", ":"))
    assert re.search(r"https://(arxiv\.org|doi\.org|huggingface\.co|github\.com)/\S+", " ".join(head))


@pytest.mark.parametrize(("group", "name"), CHOICES, ids=[f"{group}-{name}" for group, name in CHOICES])
def test_every_choice_of_a_group_can_be_taken_and_describes_itself(group, name):
    choice = f"{group}=[{name}]" if group == "verifier" else f"{group}={name}"
    override = [choice, "eval.every=0", "cold_start.steps=0", *REQUIRED.get(f"{group}={name}", [])]
    assert isinstance(configure("recipe=quickstart", *override), TrainConfig)
    assert command.head_comment(SOURCE.choices(group)[name])[0]


def test_process_credit_without_step_rewards_is_refused():
    with pytest.raises(ConfigError, match=r"objective.advantage.credit='process': no verifier rewards steps; add one"):
        configure("recipe=quickstart", "objective.advantage.credit=process")


@pytest.mark.parametrize("group", ["model", "rollout"])
def test_every_model_and_backend_is_used_by_a_recipe(group):
    used = set(re.findall(rf"/{group}: (\w+)", "".join(file.read_text() for file in RECIPES.glob("recipe/*.yaml"))))
    assert set(SOURCE.choices(group)) <= used


def test_dapo_holds_the_papers_values():
    config = configure("recipe=dapo_math")
    assert (config.policy.prompts_per_step, config.rollout.group_size, config.objective.minibatches) == (512, 16, 16)
    assert (config.policy.learning_rate, config.policy.warmup_steps) == (1e-6, 20 * 16)
    assert (config.objective.trust.low, config.objective.trust.high) == (0.2, 0.28)
    assert (config.objective.aggregate, config.objective.kl.coef) == ("token_mean", 0)
    assert config.rollout.max_new_tokens == 20480
    assert config.verifier["overlong"]["max_tokens"] == 20480
    overlong = registry.build(config.verifier).verifiers["overlong"]
    assert overlong(Case("", "", num_tokens=20480 - 4096)).reward == 0
    assert overlong(Case("", "", num_tokens=20480 - 4096 + 1)).reward == -1 / 4096


def test_grpo_holds_deepseekmaths_values():
    config = configure("recipe=grpo_gsm8k")
    rows = config.policy.prompts_per_step * config.rollout.group_size
    assert (rows, config.rollout.group_size, config.objective.minibatches) == (1024, 64, 1)
    assert (config.policy.learning_rate, config.objective.kl.coef) == (1e-6, 0.04)
    assert (config.objective.kl.placement, config.objective.kl.estimator) == ("loss", "k3")


def test_dapo_shrinks_to_a_small_machine_from_the_shell():
    config = configure(
        "recipe=dapo_math",
        "model=smollm2",
        f"data.path={SHARED}/dapo_math/train.parquet",
        "steps=2",
        "policy.prompts_per_step=4",
        "rollout.group_size=4",
        "rollout.max_new_tokens=64",
        "verifier.overlong.cache_tokens=16",
    )
    assert config.model.path == "models/smollm2"
    assert config.verifier["overlong"]["max_tokens"] == 64
    assert Path(config.data.path).exists()


def test_vllm_brings_its_sampler_correction():
    assert configure("recipe=quickstart", "rollout=vllm").objective.correction.kind == "truncate"
    assert configure("recipe=quickstart").objective.correction.kind == "none"


def test_the_list_has_one_line_a_recipe(capsys):
    assert cli.main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in NAMES:
        (line,) = [line for line in lines if line.startswith(f"  {name} ")]
        assert len(line.split(maxsplit=1)[1]) > 20


def test_a_group_lists_its_choices(capsys):
    assert cli.main(["recipes", "verifier"]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()} == set(SOURCE.choices("verifier"))


def test_an_unknown_recipe_names_the_nearest(capsys):
    assert cli.main(["recipes", "dapo"]) == 2
    assert "did you mean dapo_math?" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_a_shown_recipe_is_the_yaml_of_the_run(name, capsys):
    assert cli.main(["recipes", name]) == 0
    assert train_config(yaml.safe_load(capsys.readouterr().out)) == configure(f"recipe={name}")


def test_a_shown_recipe_names_the_source_of_each_value(capsys):
    assert cli.main(["recipes", "dapo_math", "rollout.temperature=0.9"]) == 0
    shown = re.sub(" +", " ", capsys.readouterr().out)
    for line in (
        "name: dapo_math # name of the recipe",
        " path: Qwen/Qwen2.5-7B # model/qwen2_5_7b.yaml",
        " learning_rate: 1.0e-06 # recipe/dapo_math.yaml",
        " high: 0.28 # objective/dapo.yaml",
        " kind: truncate # rollout/vllm.yaml",
        " temperature: 0.9 # command line",
        " top_p: 1.0 # default",
    ):
        assert f"{line}\n" in shown
    for line in shown.splitlines():
        assert line.endswith(":") or " # " in line


def test_train_help_lists_recipes_groups_and_every_key(capsys):
    assert cli.main(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    for name in [*NAMES, *(choice for _, choice in CHOICES)]:
        assert name in shown
    assert "  verifier.NAME.gate=null" in shown
    assert "  verifier.math.thinking=optional" in shown
    for key, _, _, meaning in flat_fields(TrainConfig):
        assert key == "verifier" or f"  {key}=" in shown
        assert key == "verifier" or meaning.split()[0] in shown
