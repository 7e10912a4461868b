"""Supervised fine-tuning on worked examples before reinforcement learning, as DeepSeek-R1 begins.

Its result is an ordinary model folder, which is then the start model and the reference of reinforcement learning.
"""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.batch import pack
from rlvr.config import ModelConfig, TrainConfig
from rlvr.data.prompts import load_prompts
from rlvr.data.sampler import PromptSampler
from rlvr.data.templates import ChatTemplate
from rlvr.errors import DataError
from rlvr.observe.console import Console
from rlvr.policy.optimizer import learning_rate
from rlvr.policy.trainer import Policy

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

COLUMN = "completion"
WARMUP_SHARE = 0.1


def cold_start(
    config: TrainConfig, folder: Path, tokenizer: PreTrainedTokenizerBase, template: ChatTemplate, console: Console
) -> ModelConfig:
    """The model that reinforcement learning starts from: `config.model` itself, or `folder` once it has been made.

    A folder made before (a run that goes on) is taken as it is; one that is there is always whole.

    Raises:
        DataError: the data has no worked `completion`s.
    """
    if not config.cold_start.steps:
        return config.model
    if not folder.exists():
        policy = Policy(config.model, config.policy, total_updates=1, temperature=1.0, seed=config.seed)
        _finetune(policy, config, tokenizer, template, console)
        unfinished = folder.with_suffix(".tmp")
        with suppress(FileNotFoundError):
            shutil.rmtree(unfinished)
        policy.export(unfinished, tokenizer)
        unfinished.rename(folder)
    return replace(config.model, path=str(folder), revision=None)


def _finetune(
    policy: Policy,
    config: TrainConfig,
    tokenizer: PreTrainedTokenizerBase,
    template: ChatTemplate,
    console: Console,
) -> None:
    options, started = config.cold_start, time.monotonic()
    data = replace(config.data, path=options.path or config.data.path)
    examples, report = load_prompts(data, template)
    if COLUMN not in examples[0].extra:
        raise DataError(f"{report.source}: a cold start needs a column {COLUMN!r} with worked answers; it has none")
    sampler = PromptSampler(examples, config.seed)
    losses = []
    with console.progress("cold start", options.steps) as advance:
        for step in range(options.steps):
            drawn = sampler.next(options.rows_per_step)
            targets = tokenizer([p.extra[COLUMN] for p in drawn], add_special_tokens=False)["input_ids"]
            batch = pack([(p.token_ids, [*ids, tokenizer.eos_token_id]) for p, ids in zip(drawn, targets, strict=True)])
            rate = learning_rate(
                step, options.learning_rate, "linear", round(WARMUP_SHARE * options.steps), options.steps
            )
            losses.append(policy.sft(batch, rate)["sft/loss"])
            advance(1)
    console.say(
        f"cold start on {report.source}: {options.steps} steps of {options.rows_per_step} worked examples, "
        f"loss {losses[0]:.2f} → {losses[-1]:.2f} nats a token, {time.monotonic() - started:.0f} s"
    )
