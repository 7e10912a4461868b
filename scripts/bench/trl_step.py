"""TRL's side of step.py: GRPOTrainer, as many steps as there are prompts for, one JSON line out for each.

Runs in TRL's own environment; knows nothing of rlvr.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def spread_reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Differs within every group, so that each row has an advantage to train on."""
    return [sum(ids) % 7 / 7 for ids in completion_ids]


class TimedTrainer(GRPOTrainer):  # type: ignore[misc]
    """GRPOTrainer that notes how long it generates and scores; what is left of a step is the update."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.parts: dict[str, float] = {}
        super().__init__(*args, **kwargs)

    def _generate(self, prompts: list[Any]) -> Any:
        started = time.perf_counter()
        output = super()._generate(prompts)
        self.parts["generate"] = time.perf_counter() - started
        prompt_ids, completion_ids = output[0], output[1]
        self.parts["prompt_tokens"] = sum(map(len, prompt_ids))
        self.parts["new_tokens"] = sum(map(len, completion_ids))
        return output

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        output = super()._calculate_rewards(*args, **kwargs)
        self.parts["score"] = time.perf_counter() - started
        return output


class Report(TrainerCallback):
    """Writes each step's times."""

    def __init__(self, answers: Any) -> None:
        self.answers = answers
        self.trainer: TimedTrainer | None = None
        self.started = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        assert self.trainer is not None
        step, parts = time.perf_counter() - self.started, self.trainer.parts
        update = step - parts["generate"] - parts["score"]
        parts |= {"update": update, "sync": 0.0, "probe": 0.0, "step": step}
        print(json.dumps(parts), file=self.answers, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", required=True, help="JSON lines with a question each")
    parser.add_argument("--prompts-per-step", type=int, required=True)
    parser.add_argument("--group-size", type=int, required=True)
    parser.add_argument("--new-tokens", type=int, required=True)
    parser.add_argument("--rows-per-microbatch", type=int, required=True)
    parser.add_argument("--gradient-checkpointing", action="store_true")
    args = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever TRL prints must not mix with the answers
    with open(args.prompts) as file:
        prompts = [[{"role": "user", "content": json.loads(line)["question"]}] for line in file]
    rows = args.prompts_per_step * args.group_size
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=not torch.cuda.is_available(),
        per_device_train_batch_size=args.rows_per_microbatch,
        gradient_accumulation_steps=rows // args.rows_per_microbatch,
        gradient_checkpointing=args.gradient_checkpointing,
        num_generations=args.group_size,
        max_completion_length=args.new_tokens,
        generation_kwargs={"min_new_tokens": args.new_tokens},
        max_steps=len(prompts) // args.prompts_per_step,
        shuffle_dataset=False,
        save_strategy="no",
        report_to=[],
        logging_steps=1,
        disable_tqdm=True,
    )
    callback = Report(answers)
    trainer = TimedTrainer(
        model=args.model,
        reward_funcs=spread_reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=AutoTokenizer.from_pretrained(args.model, padding_side="left"),
        callbacks=[callback],
    )
    callback.trainer = trainer
    trainer.train()


if __name__ == "__main__":
    main()
