"""A sweep through the command line: fresh processes, a folder each, one table; a failing job hides no other."""

import subprocess
import sys

import pytest

SMALL = [
    "recipe=quickstart",
    "steps=1",
    "cold_start.steps=1",
    "policy.prompts_per_step=2",
    "rollout.group_size=2",
    "rollout.max_new_tokens=4",
    "eval.every=0",
    "preflight=off",
    "scoring.workers=1",
]


@pytest.mark.slow
def test_a_failing_job_leaves_the_others_alone_and_is_named(tmp_path):
    command = [sys.executable, "-m", "rlvr.cli", "train", "-m", *SMALL, "seed=0,1"]
    command.append("data.path='procedural:arithmetic',missing.jsonl")
    command[command.index("cold_start.steps=1")] = "cold_start.steps=0"
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1, done.stderr
    (sweep,) = (tmp_path / "runs").iterdir()
    table = done.stdout[done.stdout.rindex("\njob ") :]
    for seed in (0, 1):
        good = f"seed={seed},data.path=procedural_arithmetic"
        bad = f"seed={seed},data.path=missing.jsonl"
        assert (sweep / good / "metrics.jsonl").exists()
        (line,) = [line for line in table.splitlines() if line.startswith(f"{good} ")]
        assert "done" in line
        (line,) = [line for line in table.splitlines() if line.startswith(f"{bad} ")]
        assert "failed (2)" in line
        assert f"{bad}: error: " in table
    assert not (tmp_path / "outputs").exists()
    assert not (tmp_path / "multirun").exists()


@pytest.mark.slow
def test_a_second_launcher_runs_the_same_jobs(tmp_path):
    command = [sys.executable, "-m", "rlvr.cli", "train", "-m", *SMALL, "seed=0,1", "hydra/launcher=submitit_local"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (sweep,) = (tmp_path / "runs").iterdir()
    assert (sweep / "seed=0" / "metrics.jsonl").exists()
    assert (sweep / "seed=1" / "metrics.jsonl").exists()
