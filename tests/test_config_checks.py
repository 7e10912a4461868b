"""Options together: contradictions are refused by both names, what is hardly meant is warned of."""

from dataclasses import replace

import pytest

from rlvr.config import TrainConfig
from rlvr.config_checks import check_across, train_config
from rlvr.errors import ConfigError


def test_the_defaults_are_legal_and_warn_of_nothing():
    assert train_config({}) == TrainConfig()
    assert check_across(TrainConfig()) == []


# key=value pairs, then what the message must name: the key, the other key, the mend.
CONTRADICTIONS = {
    "pass@k without k samples": (
        {"eval": {"k": [1, 8], "samples": 4}},
        ["eval.k=[1, 8]", "eval.samples=4", "raise"],
    ),
    "greedy samples": (
        {"eval": {"temperature": 0, "samples": 2}},
        ["eval.temperature=0.0", "eval.samples=2", "eval.samples=1"],
    ),
    "rows that do not divide": (
        {"objective": {"minibatches": 5}, "policy": {"prompts_per_step": 6}, "rollout": {"group_size": 3}},
        ["objective.minibatches=5", "policy.prompts_per_step=6", "rollout.group_size=3", "objective.minibatches=3"],
    ),
    "more minibatches than rows": (
        {"objective": {"minibatches": 16}, "policy": {"prompts_per_step": 2}, "rollout": {"group_size": 4}},
        ["objective.minibatches=16", "8 rows", "objective.minibatches=8"],
    ),
    "a penalty that is never reached": (
        {"verifier": {"math": {}, "overlong": {"max_tokens": 600}}, "rollout": {"max_new_tokens": 512}},
        ["verifier.overlong.max_tokens=600", "rollout.max_new_tokens=512", "set both"],
    ),
    "a group of one": (
        {"rollout": {"group_size": 1}},
        ["objective.advantage.baseline='group_mean'", "rollout.group_size=1", "batch_mean"],
    ),
    "a nucleus with a ratio": (
        {"rollout": {"top_p": 0.9}},
        ["objective.ratio.level='token'", "rollout.top_p", "set rollout.top_p=1"],
    ),
    "a clip without a ratio": (
        {"objective": {"ratio": {"level": "none"}}},
        ["objective.trust.kind='clip'", "objective.ratio.level='none'", "set"],
    ),
    "no question": ({"data": {"question": None}}, ["data.question=None", "data.messages"]),
    "a cold start without examples": (
        {"cold_start": {"steps": 5}, "data": {"path": "x.parquet"}},
        ["cold_start.steps=5", "data.path=x.parquet", "cold_start.path"],
    ),
    "an evaluation on the training file": (
        {"eval": {"every": 5}, "data": {"path": "x.parquet"}},
        ["eval.every=5", "data.path=x.parquet", "eval.path"],
    ),
    "rounding without lower precision": (
        {"policy": {"dtype": "float32", "optimizer": {"master_weights": "stochastic_rounding"}}},
        ["policy.optimizer.master_weights='stochastic_rounding'", "policy.dtype=float32", "policy.dtype=bfloat16"],
    ),
    "rounding and offloaded masters": (
        {"policy": {"optimizer": {"master_weights": "stochastic_rounding", "offload": True}}},
        ["policy.optimizer.master_weights='stochastic_rounding'", "policy.optimizer.offload=true", "float32"],
    ),
    "offloading what selective checkpointing keeps": (
        {"policy": {"gradient_checkpointing": "selective", "offload_activations": True}},
        ["policy.offload_activations=True", "policy.gradient_checkpointing=selective", "full"],
    ),
    "a refreshed reference with adapters": (
        {"lora": {"rank": 8}, "reference": {"refresh_every": 5}},
        ["reference.refresh_every=5", "lora.rank=8", "set one of the two to 0"],
    ),
    "adapters larger than vLLM takes": (
        {"lora": {"rank": 513}, "rollout": {"engine": "vllm"}},
        ["lora.rank=513", "rollout.engine=vllm", "512", "rollout.engine=hf"],
    ),
    "adapters nowhere": ({"lora": {"rank": 8, "targets": []}}, ["lora.targets=[]", "all-linear"]),
    "one layer without brackets": ({"lora": {"targets": "q_proj"}}, ["lora.targets='q_proj'", "lora.targets=[q_proj,"]),
    "a negative rank": ({"lora": {"rank": -1}}, ["lora.rank=-1"]),
    "a scale of 0": ({"lora": {"alpha": 0}}, ["lora.alpha=0"]),
    "no verifier": ({"verifier": {}}, ["verifier={}", "at least one"]),
    "an unknown verifier": ({"verifier": {"mathh": {}}}, ["verifier", "mathh", "math"]),
    "a judge slower than the deadline": (
        {"verifier": {"judge": {"url": "http://x/v1", "model": "m", "seconds": 10.0}}},
        ["verifier.judge.seconds=10.0", "scoring.deadline_seconds=10", "more there"],
    ),
    "tests slower than the deadline": (
        {"verifier": {"code": {}}, "scoring": {"deadline_seconds": 8.0}},
        ["verifier.code.case_seconds=8.0", "scoring.deadline_seconds=8", "more there"],
    ),
    "an unknown option of a verifier": ({"verifier": {"math": {"no_such": 1}}}, ["verifier.math.no_such=1", "key"]),
}


@pytest.mark.parametrize(("values", "names"), CONTRADICTIONS.values(), ids=list(CONTRADICTIONS))
def test_a_contradiction_is_refused_by_both_names_with_the_mend(values, names):
    with pytest.raises(ConfigError) as caught:
        train_config(values)
    for name in names:
        assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"eval": {"k": [1, 4], "samples": 4}},
        {"objective": {"minibatches": 9}, "policy": {"prompts_per_step": 6}, "rollout": {"group_size": 3}},
        {"verifier": {"overlong": {"max_tokens": 512}}, "rollout": {"max_new_tokens": 512}},
        {"data": {"question": None, "messages": "prompt"}},
        {"data": {"question": None, "user": "{nums} to {target}"}},
        {"verifier": {"judge": {"url": "http://x/v1", "model": "m", "seconds": 9.9}}},
        {"eval": {"every": 5}, "data": {"path": "folder"}},
        {"lora": {"rank": 512}, "rollout": {"engine": "vllm"}},
        {"lora": {"rank": 513, "targets": ["q_proj"]}, "rollout": {"engine": "hf"}},
        {"eval": {"every": 5, "path": "y.parquet"}, "data": {"path": "x.parquet"}},
    ],
    ids=str,
)
def test_what_lies_just_inside_the_limit_is_legal(values):
    assert isinstance(train_config(values), TrainConfig)


def test_a_warm_up_longer_than_the_run_is_warned_of():
    config = train_config({"steps": 3, "objective": {"minibatches": 2}, "policy": {"warmup_steps": 6}})
    assert check_across(config) == []
    (warning,) = check_across(replace(config, steps=2))
    assert "policy.warmup_steps=6" in warning
    assert "4 optimizer steps" in warning


def test_a_critics_warm_up_as_long_as_the_run_is_warned_of():
    critic = {"advantage": {"baseline": "critic", "scale": "none"}, "critic": {"warmup_steps": 3}, "minibatches": 2}
    config = train_config({"steps": 5, "objective": critic, "policy": {"warmup_steps": 4}})
    assert config.total_updates == (5 - 3) * 2
    assert check_across(config) == []
    (warning,) = check_across(replace(config, steps=3))
    assert "objective.critic.warmup_steps=3" in warning
    assert "steps=3" in warning


def test_a_lambda_that_short_rows_make_0_is_warned_of():
    critic = {"advantage": {"baseline": "critic", "scale": "none"}, "critic": {"lam_alpha": 0.05}}
    config = train_config({"objective": critic, "rollout": {"max_new_tokens": 40}})
    assert check_across(config) == []
    (warning,) = check_across(replace(config, rollout=replace(config.rollout, max_new_tokens=39)))
    for name in ("objective.critic.lam_alpha=0.05", "rollout.max_new_tokens=39", "20 tokens"):
        assert name in warning


def test_a_reference_that_is_never_read_is_warned_of():
    values = {"reference": {"refresh_every": 5}, "objective": {"kl": {"placement": "loss", "coef": 0.1}}}
    assert check_across(train_config(values)) == []
    (warning,) = check_across(train_config({**values, "objective": {}}))
    assert "objective.kl.coef" in warning
