"""The reward model: a tiny random one in its own process gives what transformers gives here."""

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

from rlvr.errors import ConfigError
from rlvr.policy.tiny import write_tiny_model
from rlvr.scoring import Scorer
from rlvr.verifiers.base import Case
from rlvr.verifiers.registry import check
from rlvr.verifiers.reward_model import RewardModel

CASES = [
    Case(response, None, prompt="12+34") for response in ("46", "<think>2+4=6,1+3=4</think>\\boxed{46}", "", "9" * 40)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder, seed=0)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_labels=2,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def expected(folder):
    """Logits of each case alone, from transformers, in this process."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = LlamaForSequenceClassification.from_pretrained(folder).eval()
    logits = []
    for case in CASES:
        turns = [{"role": "user", "content": case.prompt}, {"role": "assistant", "content": case.response}]
        ids = tokenizer(tokenizer.apply_chat_template(turns, tokenize=False), add_special_tokens=False).input_ids
        with torch.no_grad():
            logits.append(model(torch.tensor([ids])).logits[0].tolist())
    return logits


def test_the_score_is_the_models_in_batches_of_the_workers(folder, expected):
    with Scorer({"reward_model": {"path": str(folder)}}, num_workers=4, deadline_seconds=60) as scorer:
        verdicts = scorer.score(CASES * 4)
        assert [verdict.reward for verdict in verdicts] == pytest.approx(
            [logits[0] for logits in expected] * 4, abs=1e-5
        )
        assert all(not verdict.is_fault for verdict in verdicts)
        (server,) = servers(folder)
    for _ in range(100):
        if not Path(f"/proc/{server}").exists():
            break
        time.sleep(0.1)
    assert not Path(f"/proc/{server}").exists()


def servers(folder):
    """Processes that hold the model."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if b"classifiers.server" in line and os.fsencode(folder) in line:
            found.append(int(process.name))
    return found


def test_label_and_activation(folder, expected):
    options = {"path": str(folder), "label": 1, "activation": "sigmoid"}
    with Scorer({"reward_model": options}, num_workers=1, deadline_seconds=60) as scorer:
        (verdict,) = scorer.score(CASES[:1])
    assert verdict.reward == pytest.approx(1 / (1 + math.exp(-expected[0][1])), abs=1e-5)


def test_a_model_that_does_not_load_is_an_error(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    verdict = RewardModel(path=str(tmp_path))(CASES[0])
    assert verdict.status == "error"
    assert "does not load" in verdict.detail


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"this is no model's folder: it has no config\.json"):
        check({"reward_model": {"path": str(tmp_path)}})


def test_torch_stays_in_the_models_process():
    code = "import sys, rlvr.verifiers.reward_model; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
