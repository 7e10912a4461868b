"""`rlvr explain`: what is said of a run holds for the run."""

import subprocess
import sys

import pytest

from rlvr import cli
from rlvr.commands import explain
from rlvr.commands.compose import YamlSource
from rlvr.commands.train import configure
from rlvr.config import TrainConfig
from rlvr.config_file import save_config
from rlvr.errors import ConfigError

SOURCE = YamlSource()
RECIPES = list(SOURCE.choices("recipe"))


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, list[str]]:
    """Title -> lines of each section."""
    assert cli.main(["explain", *argv]) == 0
    sections = [text.splitlines() for text in capsys.readouterr().out.split("\n\n")]
    return {title: [line.strip() for line in lines] for title, *lines in sections}


def config_of(*overrides: str) -> TrainConfig:
    return configure(list(overrides), SOURCE)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_explained_in_lines_that_fit(name, capsys):
    assert cli.main(["explain", f"recipe={name}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Objective"
    assert max(map(len, lines)) <= 120
    assert "Warnings" not in lines


def test_the_sections_of_dapo(capsys):
    sections = shown(capsys, "recipe=dapo_math", "rollout.temperature=0.9")
    objective = sections["Objective"]
    assert "x    = min(w, 2) (-min(ρ A, clip(ρ, 1 - 0.2, 1 + 0.28) A))" in objective
    assert objective.index("where") < objective.index("|y_i|      loss tokens of row i")
    assert sections["Batch"][:2] == [
        "a step: 512 prompts × 16 samples = 8,192 rows → 16 updates",
        "its updates: 1 × 16 minibatches of 512 rows; all but the first are off policy",
    ]
    read = " ".join(sections["Log-probs, and what else the loss reads"])
    assert "old a forward before the first update: objective.ratio.anchor=old with 16 steps a batch" in " ".join(
        read.split()
    )
    assert "reference none: objective.kl.placement=none" in " ".join(read.split())
    sources = {line.split("=")[0]: " ".join(line.split()) for line in sections["Values that are not the defaults"]}
    assert sources["objective.trust.high"] == "objective.trust.high=0.28 # objective/dapo.yaml, default 0.2"
    assert sources["objective.minibatches"] == "objective.minibatches=16 # recipe/dapo_math.yaml, default 1"
    assert sources["rollout.temperature"] == "rollout.temperature=0.9 # command line, default 1.0"
    assert "objective.trust.low" not in sources


def test_the_constants_length_is_the_longest_completion(capsys):
    sections = shown(capsys, "recipe=quickstart", "objective=dr_grpo")
    assert "L    = 32, the longest completion in tokens" in sections["Objective"]


def test_what_the_filters_leave_out_and_what_is_hardly_meant(capsys):
    sections = shown(capsys, "recipe=quickstart", "objective=scalerl", "objective.advantage.baseline=batch_mean")
    assert "left out: groups whose completions are all correct or all not" in sections["Objective"]
    (warning, *_) = sections["Warnings"]
    assert warning.startswith("objective.filters.zero_variance=True: drops groups that carry signal")


@pytest.mark.parametrize(
    ("overrides", "name", "text"),
    [
        (["objective=rloo", "objective.kl={placement: reward, estimator: k1, coef: 0.1}"], "old", "a forward before"),
        (
            ["objective=grpo", "objective.kl={placement: loss, coef: 0.1}"],
            "reference",
            "a forward of the start model: objective.kl",
        ),
        (["objective=reinforce"], "old", "no forward"),
        (["objective=a2c"], "values", "a forward of the critic, critic.backbone=own: objective.advantage.baseline"),
        (["objective=dppo_tv", "objective.minibatches=4"], "old", "none: nothing reads them"),
        (["objective=dppo_tv"], "rollout", "as the engine drew them; read by objective.ratio.anchor=rollout"),
        (["objective.entropy.coef=0.1"], "entropy", "from the same forward, with gradient"),
    ],
)
def test_each_input_names_the_choice_that_reads_it(overrides, name, text, capsys):
    read = shown(capsys, "recipe=quickstart", *overrides)["Log-probs, and what else the loss reads"]
    (line,) = [" ".join(line.split()) for line in read if line.startswith(f"{name} ")]
    assert line.startswith(f"{name} {text}")


def test_adapters_are_what_is_trained_and_no_reference_is_loaded(capsys):
    sections = shown(capsys, "recipe=grpo_gsm8k", "lora.rank=16", "lora.targets=[q_proj,v_proj]")
    said = "trained: adapters alone, W x + 2 B A x, 16 × (inputs + outputs) weights beside each layer of "
    assert said + "lora.targets=[q_proj, v_proj]" in sections["Batch"]
    reads = " ".join(sections["Log-probs, and what else the loss reads"])
    assert "a forward of the policy without its adapters" in reads


def test_what_is_listed_as_refused_is_refused_from_the_shell():
    for paragraph in explain.refused(config_of("recipe=quickstart")):
        key, _, values = paragraph.split(": ")[0].partition("=")
        with pytest.raises(ConfigError) as caught:
            config_of("recipe=quickstart", f"{key}={values.split(' or ')[0]}")
        assert caught.value.mend in paragraph


def test_legal_choices_are_not_listed():
    config = config_of("recipe=quickstart")
    listed = {paragraph.split("=")[0] for paragraph in explain.refused(config)}
    assert {"objective.ratio.level", "objective.controller.kind", "rollout.group_size"} <= listed
    assert "objective.aggregate" not in listed
    others = [key for key, _ in explain.neighbours(config) if key not in listed]
    assert {"objective.aggregate", "objective.trust.kind", "objective.filters.zero_variance"} <= set(others)


def test_a_runs_own_configuration(tmp_path, capsys):
    save_config(config_of("recipe=quickstart", "objective=cispo"), tmp_path)
    sections = shown(capsys, "--config-path", str(tmp_path))
    assert "x    = -sg(clip(ρ, 1 - 1, 1 + 4)) A log π" in sections["Objective"]
    sources = [" ".join(line.split()) for line in sections["Values that are not the defaults"]]
    assert "objective.trust.high=4.0 # config.yaml, default 0.2" in sources


def test_a_run_that_would_be_refused_is_not_explained(capsys):
    assert cli.main(["explain", "recipe=quickstart", "objective.ratio.level=none"]) == 2
    assert "objective.ratio.level" in capsys.readouterr().err


def test_it_needs_no_torch():
    code = (
        "import sys; from rlvr import cli; code = cli.main(['explain', 'recipe=quickstart']); "
        "sys.exit(code or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
