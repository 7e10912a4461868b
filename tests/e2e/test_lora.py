"""`rlvr train lora.rank=...` from the command line: what a run keeps, going on, export, and the hand-over to vLLM."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from .test_training import SMALL, repeatable_metrics, rlvr

LORA = [*SMALL, "lora.rank=8", "policy.learning_rate=1e-2", "objective.kl.placement=loss", "objective.kl.coef=0.01"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds `runs/whole`: three steps without a stop."""
    folder = tmp_path_factory.mktemp("whole")
    done = rlvr("train", *LORA, "name=whole", "steps=3", "eval.every=0", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 8, 0.1 M parameters trained" in done.stdout
    assert "the policy without its adapters" in done.stdout
    return folder


def test_a_run_that_goes_on_gives_the_metrics_of_the_uninterrupted_one(whole, tmp_path):
    for steps, resume in ((2, "never"), (3, "auto")):
        options = ["name=whole", f"steps={steps}", "eval.every=0", f"resume={resume}"]
        done = rlvr("train", *LORA, *options, folder=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    rows = repeatable_metrics(whole / "runs" / "whole")
    assert repeatable_metrics(tmp_path / "runs" / "whole") == rows
    assert rows[2]["policy/kl_ref"] > 0


def test_a_checkpoint_is_exported_merged_or_as_adapters(whole):
    from peft import PeftModel

    run = whole / "runs" / "whole"
    saved = run / "checkpoints" / "step-000003"
    assert not (saved / "model").exists()
    for output, more in (("merged", []), ("alone", ["adapter=true"])):
        done = rlvr("export", "runs/whole", f"output={output}", *more, folder=whole)
        assert done.returncode == 0, done.stderr
        assert (whole / output / "tokenizer.json").is_file()
    merged = AutoModelForCausalLM.from_pretrained(whole / "merged", dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(run / "cold_start", dtype=torch.float32)
    ids = torch.arange(10, 60)[None]
    with torch.no_grad():
        before = base(ids).logits
        after = PeftModel.from_pretrained(base, whole / "alone")(ids).logits
        rounding = (merged(ids).logits - after).abs().mean()  # weights in bfloat16
    assert rounding < 0.1 * (after - before).abs().mean()


@pytest.mark.vllm
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllm_samples_from_the_adapters(tmp_path):
    engine = ["rollout.engine=vllm", "rollout.dtype=float32", "policy.dtype=float32"]
    done = rlvr("train", *LORA, *engine, "name=vllm", "steps=2", "eval.every=0", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (tmp_path / "runs/vllm/metrics.jsonl").read_text().splitlines()]
    assert all(row["mismatch/handover"] < 1e-4 for row in rows)


def test_adapters_that_are_not_there_cannot_be_exported(whole, tmp_path):
    done = rlvr("train", *SMALL, "name=full", "steps=1", "eval.every=0", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    done = rlvr("export", "runs/full", "adapter=true", folder=tmp_path)
    assert done.returncode == 2
    assert "adapter='true': lora.rank=0" in done.stderr


def test_a_layer_that_the_model_lacks_is_named_before_the_cold_start(tmp_path):
    done = rlvr("train", *LORA, "lora.targets=[q_prj]", "name=typo", folder=tmp_path)
    assert done.returncode == 2
    assert "lora.targets=['q_prj']: the model has no linear layer 'q_prj'; known: down_proj," in done.stderr
    assert not (tmp_path / "runs" / "typo" / "cold_start").exists()
