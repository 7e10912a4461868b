"""Objectives that need more than log-probs, from the command line: a critic, the exact KL, a reference that moves."""

import json
import subprocess
import sys
from pathlib import Path

from rlvr.observe.metrics import UNREPEATABLE

SMALL = [
    "recipe=quickstart",
    "name=run",
    "cold_start.steps=4",
    "policy.schedule=constant",
    "policy.prompts_per_step=8",
    "rollout.group_size=4",
    "eval.every=0",
    "preflight=off",
    "log.rollouts=false",
    # So short a cold start leaves no right answer; what ends early at least is paid.
    "verifier=[math,overlong]",
    "verifier.overlong.cache_tokens=16",
]
# A critic that waits a step, several optimizer steps a batch, and the exact KL to what the policy was two steps ago.
FULL = [
    "objective=vapo",
    "objective.critic.warmup_steps=1",
    "objective.kl.placement=loss",
    "objective.kl.estimator=exact",
    "objective.kl.coef=0.05",
    "reference.refresh_every=2",
]


def train(folder: Path, *overrides: str) -> list[dict]:
    """The metrics that repeat, a dictionary a step."""
    command = [sys.executable, "-m", "rlvr.cli", "train", *SMALL, *overrides]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (folder / "runs/run/metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(UNREPEATABLE)} for row in rows]


def test_ppo_trains_policy_and_critic(tmp_path: Path) -> None:
    # The recipe itself has no KL; PPO's is in the reward.
    kl = ["objective.kl.placement=reward", "objective.kl.estimator=k1", "objective.kl.coef=0.05"]
    first, second = train(tmp_path, "objective=ppo", "steps=2", *kl)
    for metrics in (first, second):
        assert metrics["critic/grad_norm"] > 0
        assert metrics["policy/grad_norm"] > 0
        assert metrics["policy/ratio_max"] > 1
    assert first["critic/explained_variance"] == 0
    assert second["critic/explained_variance"] != 0
    assert second["policy/kl_ref"] > 0
    head = (tmp_path / "runs/run/run.log").read_text()
    assert "own backbone, 1.1 M parameters of its own" in head
    assert "the start model" in head


def test_critic_exact_kl_and_reference_go_on_as_if_never_stopped(tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for folder in (whole, stopped):
        folder.mkdir()
    uninterrupted = train(whole, *FULL, "steps=3")
    train(stopped, *FULL, "steps=2")
    assert train(stopped, *FULL, "steps=3", "resume=auto") == uninterrupted
    assert "policy/loss" not in uninterrupted[0]
    assert all(metrics["critic/grad_norm"] > 0 for metrics in uninterrupted)
    assert all(metrics["policy/kl_ref"] > 0 for metrics in uninterrupted[1:])
