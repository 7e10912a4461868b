"""A recipe's values as a checked `TrainConfig`: whether the options of different groups go together.

What one option may be is said in `config`, by its type.
"""

from __future__ import annotations

from typing import Any

from rlvr.config import EvalConfig, PolicyConfig, ReferenceConfig, TrainConfig
from rlvr.errors import ConfigError
from rlvr.objectives.legality import check as check_objective
from rlvr.objectives.needs import Needs
from rlvr.validation import validate
from rlvr.verifiers.registry import check as check_verifiers
from rlvr.verifiers.registry import verifier_class

VLLM_MAX_RANK = 512


def train_config(values: dict[str, Any]) -> TrainConfig:
    """Validates a composed recipe.

    Raises:
        ConfigError: naming key, value and mend; nothing heavy has been imported by then.
    """
    config = validate(TrainConfig, values)
    check_across(config)
    return config


def check_across(config: TrainConfig) -> list[str]:
    """Whether the options of different groups go together.

    Returns:
        Warnings, one line each: legal, but hardly meant.

    Raises:
        ConfigError: the first contradiction; it names both keys and the mend.
    """
    warned = check_objective(config.objective, group_size=config.rollout.group_size, top_p=config.rollout.top_p)
    check_verifiers(config.verifier, config.scoring.deadline_seconds)
    _check_steps(config)
    _check_batch(config)
    _check_memory(config.policy)
    _check_data(config)
    _check_eval(config)
    _check_lora(config)
    return warned + _warnings(config)


def _warnings(config: TrainConfig) -> list[str]:
    warned = []
    needs, updates, critic = Needs(config.objective), config.total_updates, config.objective.critic
    if not updates:
        why = f"steps={config.steps} is not above it, so the policy is never trained"
        warned.append(f"objective.critic.warmup_steps={critic.warmup_steps}: {why}")
    elif config.policy.warmup_steps > updates:
        why = f"the run has only {updates} optimizer steps, so policy.learning_rate is never reached"
        warned.append(f"policy.warmup_steps={config.policy.warmup_steps}: {why}")
    longest = config.rollout.max_new_tokens
    if needs.needs_critic and critic.lam_alpha is not None and critic.lam_alpha * longest < 2:
        why = f"lambda is 0 for rows of up to {1 / critic.lam_alpha:g} tokens, and rollout.max_new_tokens={longest}"
        warned.append(f"objective.critic.lam_alpha={critic.lam_alpha}: {why}; raise it")
    if config.reference != ReferenceConfig() and not needs.needs_reference:
        warned.append("reference is read only where objective.kl.coef is above 0")
    return warned


def _check_steps(config: TrainConfig) -> None:
    steps = any(verifier_class(name).rewards_steps for name in config.verifier)
    if Needs(config.objective).needs_step_rewards and not steps:
        mend = "no verifier rewards steps; add one, as in verifier=[math,arithmetic_steps], or take outcome"
        raise ConfigError("objective.advantage.credit", config.objective.advantage.credit, mend)


def _check_batch(config: TrainConfig) -> None:
    minibatches, rollout = config.objective.minibatches, config.rollout
    rows = config.policy.prompts_per_step * rollout.group_size
    if rows % minibatches:
        fitting = max(n for n in range(1, minibatches) if rows % n == 0)
        arithmetic = (
            f"policy.prompts_per_step={config.policy.prompts_per_step} x rollout.group_size={rollout.group_size}"
        )
        mend = f"{arithmetic} = {rows} rows do not divide into so many; objective.minibatches={fitting} does"
        raise ConfigError("objective.minibatches", minibatches, mend)
    overlong = config.verifier.get("overlong", {}).get("max_tokens")
    if overlong is not None and overlong > rollout.max_new_tokens:
        mend = f"never reached with rollout.max_new_tokens={rollout.max_new_tokens}; set both to the same"
        raise ConfigError("verifier.overlong.max_tokens", overlong, mend)


def _check_memory(policy: PolicyConfig) -> None:
    kept = policy.optimizer
    if kept.master_weights == "stochastic_rounding":
        if policy.dtype == "float32":
            mend = "with policy.dtype=float32 nothing is rounded; take float32, or policy.dtype=bfloat16"
            raise ConfigError("policy.optimizer.master_weights", kept.master_weights, mend)
        if kept.offload:
            mend = "policy.optimizer.offload=true takes master weights off the GPU as it is; take float32"
            raise ConfigError("policy.optimizer.master_weights", kept.master_weights, mend)
    if policy.offload_activations and policy.gradient_checkpointing == "selective":
        mend = "what policy.gradient_checkpointing=selective keeps cannot be moved; take full or none there"
        raise ConfigError("policy.offload_activations", True, mend)


def _check_data(config: TrainConfig) -> None:
    data = config.data
    if data.question is None and data.messages is None and "{question}" in data.user:
        mend = "name the problem's column here, or a column of turns as data.messages, or state it in data.user"
        raise ConfigError("data.question", None, mend)
    if config.cold_start.steps and config.cold_start.path is None and not data.path.startswith("procedural:"):
        mend = f"data.path={data.path} has no worked completions; set cold_start.path, or cold_start.steps=0"
        raise ConfigError("cold_start.steps", config.cold_start.steps, mend)


def _check_eval(config: TrainConfig) -> None:
    options = config.eval
    check_samples(options, "eval.")
    if options.every and options.path is None and config.data.path.endswith((".parquet", ".jsonl", ".jsonl.gz")):
        mend = (
            f"data.path={config.data.path} is one file without splits; set eval.path to held-out rows, or eval.every=0"
        )
        raise ConfigError("eval.every", options.every, mend)


def _check_lora(config: TrainConfig) -> None:
    lora, refresh_every = config.lora, config.reference.refresh_every
    if not lora.targets or (isinstance(lora.targets, str) and lora.targets != "all-linear"):
        mend = "must be all-linear or a list of layers, as in lora.targets=[q_proj,v_proj]"
        raise ConfigError("lora.targets", lora.targets, mend)
    if lora.rank and refresh_every:
        mend = f"a copy of a policy with adapters (lora.rank={lora.rank}) cannot be kept; set one of the two to 0"
        raise ConfigError("reference.refresh_every", refresh_every, mend)
    if config.rollout.engine == "vllm" and lora.rank > VLLM_MAX_RANK:
        mend = f"rollout.engine=vllm takes a rank of {VLLM_MAX_RANK} at most; lower it, or take rollout.engine=hf"
        raise ConfigError("lora.rank", lora.rank, mend)


def check_samples(options: EvalConfig, prefix: str = "") -> None:
    """Whether the samples suffice for what is to be reported of them.

    Raises:
        ConfigError: naming the key with `prefix` before it.
    """
    if max(options.k, default=0) > options.samples:
        mend = f"pass@k needs k samples; raise {prefix}samples={options.samples} or lower k"
        raise ConfigError(f"{prefix}k", options.k, mend)
    if options.temperature == 0 and options.samples > 1:
        mend = f"greedy decoding gives {prefix}samples={options.samples} equal completions; set {prefix}samples=1"
        raise ConfigError(f"{prefix}temperature", options.temperature, mend)
