"""`rlvr plan`: every use of memory once, and a peak that follows the keys that change it."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

from rlvr import cli
from rlvr.commands import plan
from rlvr.commands.compose import YamlSource
from rlvr.commands.plan import MIB, Row, peak
from rlvr.commands.train import configure
from rlvr.errors import ModelError
from rlvr.policy.tiny import write_tiny_model

SOURCE = YamlSource()
SMALL = ["policy.device=cpu", "policy.prompts_per_step=4", "policy.tokens_per_microbatch=800"]
BENCH = Path(__file__).parents[2] / "scripts" / "bench"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder without weights and without a tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder, 0)
    for file in folder.iterdir():
        if file.name != "config.json":
            file.unlink()
    return folder


def planned(folder: Path, *overrides: str) -> dict[tuple[str, str], Row]:
    config = configure(["recipe=quickstart", f"model.path={folder}", *SMALL, *overrides], SOURCE)
    config, lengths = plan.inputs(config, folder, prompt_tokens=40)
    return {(row.process, row.name.split(" of ")[0]): row for row in plan.rows(config, lengths, 300 * MIB)}


def total(rows: dict[tuple[str, str], Row]) -> float:
    return peak(rows.values()) / MIB


def test_a_recipe_is_planned_from_its_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "recipe=quickstart", *SMALL, "data.limit=8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["MiB", "held", "host"] or "gpu" in lines[0]
    assert any(line.startswith("trainer: activations of ") for line in lines)
    assert any(line.startswith("peak") for line in lines)


def test_no_weights_are_read(folder: Path) -> None:
    rows = planned(folder)
    num_parameters = 1_061_888
    weights = rows["trainer", "policy: weights"].num_bytes
    assert weights == pytest.approx(2 * num_parameters, rel=0.01)
    assert rows["trainer", "policy: AdamW's moments"].num_bytes == 4 * weights
    assert rows["trainer", "gradient sums"].num_bytes == 2 * weights


def test_updates_and_generation_take_turns() -> None:
    rows = [Row("trainer", "a", 1.0), Row("trainer", "b", 5.0, "update"), Row("trainer", "c", 7.0, "generate")]
    assert peak(rows) == 8.0
    assert peak([*rows, Row("trainer", "d", 3.0, "update")]) == 9.0
    assert peak([*rows, Row("trainer", "e", 9.0, "update", "gpu")]) == 8.0
    assert peak([*rows, Row("trainer", "e", 9.0, "update", "gpu")], "gpu") == 9.0


def test_the_peak_follows_the_keys(folder: Path) -> None:
    plain = total(planned(folder))
    assert total(planned(folder, "policy.gradient_checkpointing=full")) < plain
    assert total(planned(folder, "policy.tokens_per_microbatch=200")) < plain
    assert total(planned(folder, "policy.optimizer.moments=int8")) < plain
    assert total(planned(folder, "objective.kl={placement: loss, coef: 0.1}")) > plain
    critic = planned(folder, "objective=a2c")
    assert critic["trainer", "critic: AdamW's moments"].num_bytes > 0
    assert total(critic) > plain


def test_adapters_alone_are_trained(folder: Path) -> None:
    with_kl = ["objective.kl={placement: loss, coef: 0.1}", "rollout.engine=vllm"]
    plain, adapted = planned(folder, *with_kl), planned(folder, *with_kl, "lora.rank=4")
    weights = plain["trainer", "policy: weights"].num_bytes
    adapters = adapted["trainer", "policy: weights"].num_bytes - weights
    assert 0 < adapters < weights / 10
    assert adapted["trainer", "policy: AdamW's moments"].num_bytes == 4 * adapters
    assert adapted["trainer", "gradient sums"].num_bytes == 2 * adapters
    assert ("trainer", "reference: weights") in plain
    assert ("trainer", "reference: weights") not in adapted
    if not torch.cuda.is_available():
        assert adapted["vLLM process", "weights"] == plain["vLLM process", "weights"]
        assert adapted["vLLM process", "hand-over"].num_bytes == 3 * adapters
    assert total(adapted) < total(plain)


def test_vllm_is_a_process_with_weights_of_its_own(folder: Path) -> None:
    rows = planned(folder, "rollout.engine=vllm")
    weights = rows["trainer", "policy: weights"].num_bytes
    if not torch.cuda.is_available():
        assert rows["vLLM process", "weights"].num_bytes == weights
        given = planned(folder, "rollout.engine=vllm", "rollout.cache_gib=0.5")
        assert given["vLLM process", "key/value cache"].num_bytes == 512 * MIB


@pytest.mark.skipif(torch.cuda.is_available(), reason="vLLM would be on the GPU")
def test_a_sleeping_engine_leaves_its_cache_to_the_update(folder: Path) -> None:
    vllm = ["rollout.engine=vllm", "rollout.cache_gib=0.5"]
    asleep, awake = planned(folder, *vllm), planned(folder, *vllm, "rollout.sleep=false")
    for rows, cache, gaps in ((asleep, "generate", "update"), (awake, "always", "always")):
        assert rows["vLLM process", "key/value cache"].phase == cache
        assert rows["vLLM process", "weights"].phase == "always"
        assert rows["trainer", "gaps and inner copies"].phase == gaps
    assert total(asleep) < total(awake)


def test_a_gpu_has_a_column_of_its_own(folder: Path) -> None:
    rows = planned(folder, "policy.device=cuda", "policy.optimizer.offload=true")
    assert rows["trainer", "policy: weights"].place == "gpu"
    assert rows["trainer", "policy: AdamW's moments"].place == "host"
    lines = plan.table(list(rows.values()))
    assert lines[0].split() == ["MiB", "held", "host", "gpu"]
    assert "Not measured on a GPU" in lines[-1]


def test_a_model_without_a_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.path"):
        planned(tmp_path)


def test_the_benchmark_compares_with_what_was_measured(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = {"hf": {"prompt_tokens": 8 * 30, "peak_mib": 500.0}, "trl": {}}
    report = {"workload": "W0", "prompts_per_step": 2, "group_size": 4, "new_tokens": 8, "sides": sides}
    (tmp_path / "w0.json").write_text(json.dumps(report))
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setattr(sys, "argv", ["plan.py", "--model", str(folder), str(tmp_path / "w0.json")])
    runpy.run_path(str(BENCH / "plan.py"), run_name="__main__")
    *_, row = capsys.readouterr().out.splitlines()
    workload, engine, predicted, measured, ratio = (cell.strip() for cell in row.strip("|").split("|"))
    assert (workload, engine, measured) == ("W0", "hf", "500")
    assert float(ratio) == pytest.approx(float(predicted.replace(",", "")) / 500, abs=0.01)
