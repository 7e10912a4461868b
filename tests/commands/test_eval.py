"""`rlvr eval`: its options, and the whole way from a model folder to a table and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvr.commands import eval as command
from rlvr.commands.compose import YamlSource
from rlvr.commands.eval import EvalRunConfig, eval_run_config
from rlvr.errors import ConfigError
from rlvr.policy.tiny import write_tiny_model

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


def options(*overrides: str) -> EvalRunConfig:
    return eval_run_config(list(overrides), YamlSource(primary="eval", options=EvalRunConfig))


def test_options_come_from_the_groups_and_the_shell() -> None:
    config = options("model=smollm2", "data=svamp", "k=[1,4]", "samples=4", "temperature=0.5", "engine=vllm")
    assert (config.model.path, config.data.path, config.data.split) == ("models/smollm2", "ChilleD/SVAMP", "test")
    assert (config.k, config.samples, config.temperature) == ([1, 4], 4, 0.5)
    assert config.rollout.engine == "vllm"
    assert (config.sampling.k, config.sampling.samples, config.sampling.temperature) == ([1, 4], 4, 0.5)


def test_held_out_rows_unless_told_otherwise() -> None:
    assert options("model=smollm2", "data=arithmetic").data.split == "test"
    assert options("model=smollm2", "data=arithmetic", "data.split=train").data.split == "train"


def test_a_verifiers_file_may_ask_for_the_length_limit() -> None:
    config = options("model=smollm2", "data=svamp", "verifier=[math,overlong]", "max_new_tokens=64")
    assert config.verifier["overlong"]["max_tokens"] == 64
    with pytest.raises(ConfigError, match=r"rollout=.*there is no such key"):
        options("model=smollm2", "data=svamp", "rollout.max_new_tokens=64")


def test_a_path_stands_where_a_choice_may(tmp_path: Path) -> None:
    config = options(f"model={tmp_path}", "data=procedural:arithmetic")
    assert (config.model.path, config.data.path) == (str(tmp_path), "procedural:arithmetic")
    assert options("model=Qwen/Qwen2.5-7B", "data=rows.jsonl").data.path == "rows.jsonl"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["model=tiny", "data=arithmetic"], "model='tiny': is made anew by each run; .*rlvr export"),
        (["data=arithmetic"], "model=None: name a model folder or hub id: model=PATH, or one of .*smollm2"),
        (["model=smollm2"], "data=None: name a data set: data=PATH, or one of .*gsm8k"),
        (
            ["model=smollm2", "data=arithmetics"],
            "data='arithmetics': there is no such choice; did you mean arithmetic?",
        ),
        (["model=smollm2", "data=arithmetic", "k=[1,8]"], "k=.*pass@k needs k samples; raise samples=1"),
        (["model=smollm2", "data=arithmetic", "samples=2", "temperature=0"], "temperature=.*greedy.*set samples=1"),
        (["model=smollm2", "data=arithmetic", "sample=2"], "sample=2: there is no such key; did you mean samples"),
        (["model=smollm2", "data=arithmetic", "steps=2"], "steps=2: there is no such key"),
        (["model=smollm2", "data=arithmetic", "samples=0"], "samples=0: .*greater than 0"),
        (["model=smollm2", "data=arithmetic", "engine=sglang"], "engine='sglang': .*'hf' or 'vllm'"),
    ],
)
def test_wrong_options(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options(*argv)


def test_help_has_a_meaning_for_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (temperature,) = [line for line in lines if line.strip().startswith("temperature")]
    assert "0 is greedy" in temperature
    with pytest.raises(ConfigError, match="model=None"):
        command.main([])


def test_output_that_is_a_folder_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"output=.*is a folder"):
        command.main(["model=smollm2", "data=arithmetic", f"output={tmp_path}"])


def test_whole_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An untrained model has next to nothing right; what counts is that every figure is there and repeats."""
    write_tiny_model(tmp_path / "a model", seed=0)
    output = tmp_path / "figures" / "eval.json"
    rows = SHARED / "addition_1digit" / "test.parquet"
    argv = [f"model={tmp_path / 'a model'}", f"data={rows}", "data.limit=6", "k=[1,4]", "samples=4"]
    argv += ["max_new_tokens=8", "dtype=float32", f"output={output}"]
    assert command.main(argv) == 0
    shown = capsys.readouterr().out
    written = output.read_text()
    figures = json.loads(written)
    assert (figures["num_prompts"], figures["num_samples"], figures["temperature"]) == (6, 4, 1.0)
    assert {"pass@1", "pass@4", "avg@4", "maj@4"} <= figures.keys()
    assert 0 < figures["mean_length"] <= 8
    assert sum(figures["faults"].values()) == 0
    assert "addition_1digit/test.parquet: 20 rows -> 6 prompts" in shown
    assert "6 prompts x 4 samples, temperature 1, top_p 1" in shown
    assert f"written to {output}" in shown
    assert command.main(argv) == 0
    assert output.read_text() == written
