"""rlvr's side of step.py: the loop's own parts, as many steps as there are prompts for, one JSON line out for each."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rlvr.assembly import assemble
from rlvr.config import TrainConfig
from rlvr.config_checks import train_config
from rlvr.observe.console import Console
from rlvr.observe.metrics import Clock
from rlvr.records import Group

TOKENS_PER_MICROBATCH = 2304  # on the CPU as fast as larger ones, with less memory; one chunk of logits each
PARTS = ("generate", "score", "update", "sync", "probe", "step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["vllm", "hf"], required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", required=True, help="JSON lines with a question and an answer each")
    parser.add_argument("--prompts-per-step", type=int, required=True)
    parser.add_argument("--group-size", type=int, required=True)
    parser.add_argument("--new-tokens", type=int, required=True)
    parser.add_argument("--no-shared-prompts", action="store_true", help="compute the prompt anew for each completion")
    parser.add_argument("--compile", action="store_true", help="rollout.compile=true")
    args = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the parts print must not mix with the answers
    config = configuration(
        args.engine,
        args.model,
        args.prompts,
        args.prompts_per_step,
        args.group_size,
        args.new_tokens,
        share_prompts=not args.no_shared_prompts,
        compiled=args.compile,
    )
    folder = Path(tempfile.mkdtemp(prefix="rlvr-bench-"))
    with ExitStack() as stack:
        parts = assemble(config, folder, Console(log=folder / "run.log"), stack)
        loop = parts.loop
        loop.sync(Clock())
        for _ in range(len(parts.prompts) // args.prompts_per_step):
            clock = Clock()
            groups = [spread_rewards(group) for group in loop.rollouts(clock).kept]
            with clock("update"):
                loop.update(groups)
            loop.sync(clock)
            loop.step += 1
            rollouts = [(group.prompt, rollout.completion) for group in groups for rollout in group.rollouts]
            new_tokens = sum(len(completion.token_ids) for _, completion in rollouts)
            times = clock.metrics(new_tokens)
            answer = {name: times[f"time/{name}"] for name in PARTS}
            answer |= {"new_tokens": new_tokens, "prompt_tokens": sum(len(prompt.token_ids) for prompt, _ in rollouts)}
            print(json.dumps(answer), file=answers, flush=True)


def configuration(
    engine: str,
    model: str,
    prompts: str,
    prompts_per_step: int,
    group_size: int,
    new_tokens: int,
    *,
    share_prompts: bool = True,
    compiled: bool = False,
) -> TrainConfig:
    return train_config(
        {
            "model": {"path": model},
            "data": {"path": prompts, "shuffle": False},
            "rollout": {
                "engine": engine,
                "group_size": group_size,
                "max_new_tokens": new_tokens,
                "ignore_eos": True,
                "compile": compiled,
            },
            "policy": {
                "prompts_per_step": prompts_per_step,
                "tokens_per_microbatch": TOKENS_PER_MICROBATCH,
                "logprob_chunk_tokens": TOKENS_PER_MICROBATCH,
                "share_prompts": share_prompts,
            },
            "verifier": {"math": {}},
        }
    )


def spread_rewards(group: Group) -> Group:
    """Rewards that differ within every group, so that each row has an advantage to train on."""
    rollouts = [
        replace(rollout, verdict=replace(rollout.verdict, reward=sum(rollout.completion.token_ids) % 7 / 7))
        for rollout in group.rollouts
    ]
    return replace(group, rollouts=rollouts)


if __name__ == "__main__":
    main()
