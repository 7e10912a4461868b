"""scripts/bench/gpu_step.py and logprobs.py: their arithmetic, and small runs of them without a GPU."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlvr.records import Completion, Group, Prompt, Rollout, Verdict

BENCH = Path(__file__).parents[2] / "scripts" / "bench"
sys.path.insert(0, str(BENCH))
QWEN, GPU_STEP, LOGPROBS, FLOORS = (
    runpy.run_path(str(BENCH / f"{name}.py")) for name in ("qwen", "gpu_step", "logprobs", "floors")
)
sys.path.remove(str(BENCH))


def start(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs it as on a machine without a GPU."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(BENCH / script), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(("name", "count"), [("0.5B", 494_032_768), ("1.5B", 1_543_714_304), ("7B", 7_615_616_512)])
def test_shapes_have_the_published_numbers_of_parameters(name: str, count: int) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(QWEN["config_of"](QWEN["SHAPES"][name]))
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_operations_of_an_update_count_a_groups_prompt_once() -> None:
    shape = QWEN["Shape"](10, layers=3, heads=2, kv_heads=1, intermediate=5, vocabulary=7, tied=True)
    rows = [Rollout(Completion([1] * length, [], "", "length", 0), Verdict(0.0, "wrong")) for length in (1, 2)]
    group = Group(Prompt("0", "", [1, 1, 1], None, ""), rows)
    seen = (1 + 2 + 3) + 4 + (4 + 5)  # keys that each computed token attends to
    products = 1000 * (3 + 3) + 10 * 7 * 3
    assert GPU_STEP["update_flops"](shape, 1000, [group, group]) == 2 * 6 * (products + 3 * 2 * 10 * seen)


def test_floors_of_the_logprobs() -> None:
    rates = FLOORS["Rates"](flops=1e9, bandwidth=1e6)
    toy = QWEN["SHAPES"]["toy"]
    once = 2 * 5 * toy.hidden * toy.vocabulary / 1e9
    assert LOGPROBS["product_floors"]("toy", 5, rates) == pytest.approx({"forward": once, "backward": 3 * once})
    read = 4 * 5 * toy.vocabulary / 1e6
    assert LOGPROBS["kernel_floors"]("toy", 5, rates) == pytest.approx({"forward": read, "backward": 1.5 * read})


def test_a_real_shape_without_a_gpu_is_not_measured() -> None:
    result = start("gpu_step.py", "--shape", "0.5B")
    assert result.returncode == 2
    assert "not measured" in result.stderr


@pytest.mark.slow
def test_the_toy_shape_runs_without_a_gpu(tmp_path: Path) -> None:
    size = ["--prompts", "2", "--group-size", "2", "--prompt-tokens", "40", "--new-tokens", "6", "--steps", "1"]
    result = start("gpu_step.py", "--shape", "toy", "--engine", "hf", *size, "--json", str(tmp_path / "report.json"))
    assert result.returncode == 0, result.stderr
    assert "| toy | 2 x 2 | 40 + 6 |" in result.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report["steps"]) == 1
    step = report["steps"][0]
    assert 4 <= step["new_tokens"] <= 2 * 2 * 6
    assert report["seconds"] == {part: step[part] for part in ("generate", "update", "hand_over")}
    assert report["update_share_of_matrix_rate"] * report["rates"]["flops"] == pytest.approx(
        step["update_flops"] / step["update"]
    )
    assert report["peak_gpu_gib"] is None


@pytest.mark.slow
def test_logprobs_are_measured_on_the_cpu_and_kernels_are_not(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    result = start("logprobs.py", "--shapes", "toy", "--tokens", "32", "--chunk", "16", "--json", str(path))
    assert result.returncode == 0, result.stderr
    assert "| toy | triton | not measured |" in result.stdout
    found = json.loads(path.read_text())["shapes"]["toy"]
    assert found["contenders"]["triton"] is found["contenders"]["liger"] is found["kernels"] is None
    for name in ("plain", "chunked"):
        assert found["contenders"][name]["forward"] > 0
        assert found["contenders"][name]["backward"] > 0
