"""Builds the parts of a run from its configuration: start model, data, workers, policy, engine, loop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr import objectives
from rlvr.allocator import keep_freed_memory
from rlvr.cold_start import cold_start
from rlvr.config import ModelConfig, TrainConfig
from rlvr.data.prompts import load_prompts
from rlvr.data.sampler import PromptSampler
from rlvr.data.templates import ChatTemplate
from rlvr.errors import ConfigError
from rlvr.loop import Loop
from rlvr.lora import check_targets
from rlvr.objectives.needs import Needs
from rlvr.observe.console import Console, batch_arithmetic
from rlvr.policy.model import check_folder, load_tokenizer
from rlvr.policy.reference import Reference
from rlvr.policy.tiny import write_tiny_model
from rlvr.policy.trainer import Policy
from rlvr.records import Prompt
from rlvr.rollout.engine import Sampling
from rlvr.rollout.factory import build_engine
from rlvr.rollout.handover import Probe, default_tolerance
from rlvr.scoring import Scorer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NUM_PROBES = 4
PROBE_TOKENS = 16  # stale or wrong weights show in any few; both sides have to compute them after every step
TINY = "tiny"


@dataclass
class Parts:
    """What a run is made of."""

    loop: Loop
    prompts: list[Prompt]
    """To train on."""
    held_out: list[Prompt]
    """To evaluate on; empty when `eval.every` is 0."""
    tokenizer: PreTrainedTokenizerBase
    facts: dict[str, str]
    """For the head of the run: name -> one line."""


def assemble(config: TrainConfig, folder: Path, console: Console, stack: ExitStack) -> Parts:
    """Builds everything.

    Args:
        folder: the run's; receives the tiny model and the cold-started one.
        stack: closes the workers and the engine.

    Raises:
        RlvrError: data, model, engine or their combination cannot be used.
    """
    if config.reference.path is not None:
        check_folder(config.reference.path, "reference.path")
    keep_freed_memory()
    # Started first: the workers import sympy while the models load.
    scorer = Scorer(config.verifier, config.scoring.workers, config.scoring.deadline_seconds)
    stack.callback(scorer.close)
    config = replace(config, model=start_model(config, folder / "start_model"))
    tokenizer = load_tokenizer(config.model)
    check_targets(config.model, config.lora)
    template = ChatTemplate(tokenizer, config.model.chat_template)
    prompts, summary = _load(config, template, console)
    if len(prompts) < config.policy.prompts_per_step:
        mend = f"the data has only {len(prompts)} prompts; ask for at most as many"
        raise ConfigError("policy.prompts_per_step", config.policy.prompts_per_step, mend)
    held_out, held_out_summary = _load(held_out_data(config), template, console) if config.eval.every else ([], "")
    model = cold_start(config, folder / "cold_start", tokenizer, template, console)
    needs = Needs(config.objective)
    policy = Policy(
        model,
        config.policy,
        lora=config.lora,
        total_updates=config.total_updates,
        temperature=config.rollout.temperature,
        seed=config.seed,
        reference=reference(config, model),
        critic=config.critic if needs.needs_critic else None,
    )
    engine = build_engine(
        replace(config.rollout, max_num_seqs=min(config.rollout.max_num_seqs, _most_samples(config, held_out))),
        model,
        tokenizer,
        max(len(p.token_ids) for p in (*prompts, *held_out)),
        policy.model.module,
        config.lora,
    )
    stack.callback(engine.close)
    loop = Loop(
        config=config,
        sampling=Sampling(
            config.rollout.max_new_tokens,
            config.rollout.temperature,
            config.rollout.top_p,
            topk=needs.needs_top_k,
            ignore_eos=config.rollout.ignore_eos,
        ),
        sampler=PromptSampler(prompts, config.seed, config.data.shuffle),
        engine=engine,
        scorer=scorer,
        objective=objectives.build(config.objective, max_new_tokens=config.rollout.max_new_tokens, seed=config.seed),
        policy=policy,
        probe=build_probe(config, prompts),
        decode=lambda token_ids: str(tokenizer.decode(list(token_ids), skip_special_tokens=True)),
        progress=console.progress,
    )
    facts = {
        "model": f"{model.path}, {millions(policy.num_parameters)}, {config.policy.dtype}",
        "data": summary,
        "held out": held_out_summary or "none (eval.every=0)",
        "rollout": f"{config.rollout.engine} engine, {config.rollout.dtype}",
        "batch": _arithmetic(config, prompts),
    }
    if config.lora.rank:
        facts["lora"] = f"rank {config.lora.rank}, {millions(policy.num_trained_parameters)} trained"
    if needs.needs_reference:
        facts["reference"] = config.reference_model
    if needs.needs_critic:
        facts["critic"] = f"{config.critic.backbone} backbone, {millions(policy.num_critic_parameters)} of its own"
    return Parts(loop, prompts, held_out, tokenizer, facts)


def millions(num_parameters: int) -> str:
    """As in `134.5 M parameters`."""
    return f"{num_parameters / 1e6:,.1f} M parameters"


def _most_samples(config: TrainConfig, held_out: Sequence[Prompt]) -> int:
    """Completions that are asked for at once at most: the engine's cache need not hold more."""
    return max(config.policy.prompts_per_step * config.rollout.group_size, len(held_out) * config.eval.samples)


def start_model(config: TrainConfig, folder: Path) -> ModelConfig:
    """`config.model`, or the embedded tiny model written to `folder`."""
    if config.model.path != TINY:
        return config.model
    if not (folder / "config.json").exists():
        write_tiny_model(folder, config.seed)
    return replace(config.model, path=str(folder))


def reference(config: TrainConfig, start: ModelConfig) -> Reference:
    """The reference of the KL terms: the model that `reference.path` names, or the one training starts from."""
    options, source, key = config.reference, start, "model.path"
    if options.path is not None:
        source, key = ModelConfig(path=options.path, revision=options.revision), "reference.path"
    return Reference(source, key=key, refresh_every=options.refresh_every, is_base=config.reference_is_base)


def held_out_data(config: TrainConfig) -> TrainConfig:
    """The same configuration with the held-out rows as its data."""
    data = replace(
        config.data, path=config.eval.path or config.data.path, split=config.eval.split, limit=config.eval.limit
    )
    return replace(config, data=data)


def build_probe(config: TrainConfig, prompts: list[Prompt]) -> Probe:
    """The ends of the first prompts, with the tolerance of the options or of the two precisions."""
    tolerance = config.rollout.handover_tolerance
    if tolerance is None:
        tolerance = default_tolerance(config.rollout.dtype, config.policy.dtype)
    return Probe([prompt.token_ids[-PROBE_TOKENS:] for prompt in prompts[:NUM_PROBES]], tolerance)


def _load(config: TrainConfig, template: ChatTemplate, console: Console) -> tuple[list[Prompt], str]:
    prompts, report = load_prompts(config.data, template)
    for warning in report.warnings():
        console.warn(warning)
    return prompts, report.summary()


def _arithmetic(config: TrainConfig, prompts: list[Prompt]) -> str:
    """The batch in one line; microbatches for completions of full length."""
    rows = config.policy.prompts_per_step * config.rollout.group_size
    longest = sum(len(p.token_ids) for p in prompts) / len(prompts) + config.rollout.max_new_tokens
    microbatches = math.ceil(rows / config.objective.minibatches * longest / config.policy.tokens_per_microbatch)
    updates = config.objective.num_steps
    line = batch_arithmetic(config.policy.prompts_per_step, config.rollout.group_size, updates, microbatches)
    return f"{line} at most"
