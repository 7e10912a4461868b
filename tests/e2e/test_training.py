"""`rlvr train` from the command line: a run's folder, going on after a stop, interruption, export, evaluation."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rlvr import checkpoint
from rlvr.observe.metrics import UNREPEATABLE

# A constant rate: a schedule that ends at the last step would make a shorter run another run.
SMALL = [
    "recipe=quickstart",
    "cold_start.steps=8",
    "policy.schedule=constant",
    "policy.prompts_per_step=8",
    "rollout.group_size=4",
    "eval.limit=16",
    "preflight=warn",
]


def rlvr(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rlvr.cli", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def repeatable_metrics(run: Path) -> list[dict]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(UNREPEATABLE)} for row in rows]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds `runs/whole`: four steps without a stop."""
    folder = tmp_path_factory.mktemp("whole")
    done = rlvr("train", *SMALL, "name=whole", "steps=4", "eval.every=4", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "before" in done.stdout
    assert "8 prompts × 4 samples = 32 rows → 1 update × 1 microbatch" in done.stdout
    return folder


def test_a_run_leaves_its_configuration_metrics_rollouts_evaluations_and_checkpoint(whole):
    run = whole / "runs" / "whole"
    assert [row["step"] for row in repeatable_metrics(run)] == [1, 2, 3, 4]
    assert {"reward/mean", "accuracy", "policy/loss", "policy/entropy", "mismatch/handover"} <= set(
        repeatable_metrics(run)[0]
    )
    assert pq.read_table(run / "rollouts" / "step-000004.parquet").num_rows == 32
    assert {p.name for p in (run / "eval").iterdir()} == {"step-000000.json", "step-000004.json"}
    assert {"pass@1", "avg@1", "temperature"} <= set(json.loads((run / "eval" / "step-000004.json").read_text()))
    assert checkpoint.verify(checkpoint.latest(run / "checkpoints"))["step"] == 4


def test_a_run_that_goes_on_gives_the_metrics_of_the_uninterrupted_one(whole, tmp_path):
    for steps, resume in ((2, "never"), (4, "auto")):
        done = rlvr(
            "train", *SMALL, "name=whole", f"steps={steps}", "eval.every=4", f"resume={resume}", folder=tmp_path
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "before  accuracy" in done.stdout
        assert "after   accuracy" in done.stdout
    assert repeatable_metrics(tmp_path / "runs" / "whole") == repeatable_metrics(whole / "runs" / "whole")


def test_going_on_from_another_recipes_run_is_refused_by_the_keys_that_differ(whole):
    done = rlvr("train", *SMALL, "name=whole", "resume=auto", "steps=5", "seed=7", folder=whole)
    assert done.returncode == 2
    assert "seed: 0 there, 7 here" in done.stderr


def test_a_flipped_byte_in_a_checkpoint_is_named(whole, tmp_path):
    import shutil

    shutil.copytree(whole / "runs", tmp_path / "runs")
    damaged = next((tmp_path / "runs").rglob("optimizer.pt"))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    done = rlvr("train", *SMALL, "name=whole", "resume=auto", "steps=5", folder=tmp_path)
    assert done.returncode == 2
    assert "optimizer.pt is damaged" in done.stderr


def test_ctrl_c_saves_and_exits_130(tmp_path):
    command = [sys.executable, "-m", "rlvr.cli", "train", *SMALL, "name=stopped", "steps=500"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "runs" / "stopped" / "metrics.jsonl"
    deadline = time.monotonic() + 240
    while not (metrics.exists() and metrics.read_text()) and time.monotonic() < deadline:
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert checkpoint.latest(tmp_path / "runs" / "stopped" / "checkpoints") is not None


def test_an_exported_checkpoint_loads_anywhere_and_can_be_evaluated(whole):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = Path("runs") / "whole"
    assert rlvr("export", str(run), "output=out", folder=whole).returncode == 0
    AutoModelForCausalLM.from_pretrained(whole / "out")
    AutoTokenizer.from_pretrained(whole / "out")
    done = rlvr(
        "eval",
        "model=./out",
        "data=arithmetic",
        "data.limit=8",
        "k=[1,2]",
        "samples=2",
        "max_new_tokens=32",
        folder=whole,
    )
    assert done.returncode == 0, done.stderr
    assert {"pass@1", "pass@2", "avg@2", "maj@2"} <= set(json.loads((whole / "eval.json").read_text()))


def test_a_run_can_be_read_in_the_terminal(whole):
    done = rlvr("show", "runs/whole", "step=4", folder=whole)
    assert done.returncode == 0, done.stderr
    assert "<think>" in done.stdout


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.path=missing.parquet", "missing.parquet"),
        ("model.path=./no_such_folder", "no_such_folder"),
        ("data.max_prompt_tokens=1", "no prompt is left"),
        ("policy.prompts_per_step=100000", "only 7600 prompts"),
    ],
)
def test_input_that_cannot_be_used_is_named_without_a_traceback(override, message, tmp_path):
    done = rlvr("train", *SMALL, "eval.every=0", "cold_start.steps=0", override, folder=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_judges_a_recipe_without_leaving_anything(tmp_path):
    done = rlvr("doctor", *SMALL, folder=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    assert "golds: 200 of 200" in done.stdout
    assert not list(tmp_path.iterdir())
