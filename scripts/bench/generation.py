"""Times generation by rlvr's vLLM engine beside bare vLLM: same prompts, number of samples and tokens, and cores.

    .venv/bin/python scripts/bench/generation.py --workload W1 --json generation.json

Bare vLLM is its `LLM` class as it comes: one seed for all samples, no log-probs. Ours seeds every sample and gives each
token's log-prob. Each side takes its turn in a fresh process (A B A B ...); before every batch prefixes are forgotten,
as between two steps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from step import WORKLOADS, Workload, add_inputs, checked_inputs, read_rows

from rlvr.cli import prepared

SIDES = ("rlvr", "bare")
BATCHES = 3  # of a turn; the first is not counted: it fills caches
# One thread a core and no process but this one, as rlvr runs it: the fastest that bare vLLM was seen to be on a CPU.
BARE = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "WARNING"}

# Samples batch number n; returns its seconds and new tokens.
Sampler = Callable[[int], tuple[float, int]]


def questions(args: argparse.Namespace, workload: Workload) -> list[list[int]]:
    """Token ids of real questions of about the workload's length."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    rows = read_rows(args, workload.prompt_tokens, workload.prompts_per_step)
    turns = [[{"role": "user", "content": row["question"]}] for row in rows]
    return [tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False) for turn in turns]


def bare(args: argparse.Namespace, prompts: list[list[int]], workload: Workload) -> Sampler:
    """vLLM alone."""
    from vllm import LLM, SamplingParams

    engine = LLM(
        str(args.model),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=max(map(len, prompts)) + workload.new_tokens + 1,
        max_num_seqs=workload.prompts_per_step * workload.group_size,
        kv_cache_memory_bytes=2**30,
        enforce_eager=True,
    )
    params = SamplingParams(
        n=workload.group_size, max_tokens=workload.new_tokens, temperature=1.0, ignore_eos=True, detokenize=False
    )

    def sample(_: int) -> tuple[float, int]:
        engine.reset_prefix_cache()
        began = time.perf_counter()
        found = engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        seconds = time.perf_counter() - began
        return seconds, sum(len(one.token_ids) for output in found for one in output.outputs)

    return sample


def own(args: argparse.Namespace, prompts: list[list[int]], workload: Workload) -> Sampler:
    """rlvr's engine, with the weights handed over before every batch."""
    import torch

    from rlvr.config import ModelConfig, RolloutConfig
    from rlvr.policy.model import load_model, load_tokenizer
    from rlvr.rollout.engine import Request, Sampling
    from rlvr.rollout.vllm_engine import VllmEngine, settings

    config, size = ModelConfig(path=str(args.model)), workload.group_size
    options = RolloutConfig(
        engine="vllm", max_new_tokens=workload.new_tokens, max_num_seqs=workload.prompts_per_step * size
    )
    engine = VllmEngine(settings(options, config, max(map(len, prompts))), load_tokenizer(config))
    model = load_model(config, torch.bfloat16, "cpu").module

    def sample(batch: int) -> tuple[float, int]:
        engine.load_weights(model.named_parameters(), batch)
        seeds = [list(range(start, start + size)) for start in range(0, size * len(prompts), size)]
        requests = [Request(prompt, of) for prompt, of in zip(prompts, seeds, strict=True)]
        began = time.perf_counter()
        found = list(engine.generate(requests, Sampling(workload.new_tokens, ignore_eos=True)))
        seconds = time.perf_counter() - began
        return seconds, sum(len(one.token_ids) for _, group in found for one in group)

    return sample


def turn(args: argparse.Namespace) -> None:
    """One side's batches, as JSON lines."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the engine prints must not mix with the answers
    workload = WORKLOADS[args.workload]
    sample = (own if args.turn == "rlvr" else bare)(args, questions(args, workload), workload)
    for batch in range(BATCHES):
        print(json.dumps(sample(batch)), file=answers, flush=True)
    os._exit(0)  # vLLM's own end takes seconds


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second of every counted batch of each side."""
    workload = WORKLOADS[args.workload]
    num_new = workload.prompts_per_step * workload.group_size * workload.new_tokens
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    environment = {**os.environ, "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}
    for _ in range(args.repeats):
        for side in SIDES:
            command = [sys.executable, __file__, "--turn", side, "--workload", args.workload]
            command += ["--model", str(args.model), "--data", str(args.data)]
            own_environment = environment | BARE if side == "bare" else prepared(environment)
            done = subprocess.run(command, capture_output=True, text=True, env=own_environment)
            batches = [json.loads(line) for line in done.stdout.splitlines()]
            if len(batches) != BATCHES or {tokens for _, tokens in batches} != {num_new}:
                sys.exit(f"{done.stderr[-4000:]}\ngeneration: {side} gave {batches}, {num_new} tokens a batch wanted")
            rates[side] += [tokens / seconds for seconds, tokens in batches[1:]]
            print(f"{side}: {rates[side][-1]:.0f} new tokens/s", file=sys.stderr, flush=True)
    medians = {side: statistics.median(values) for side, values in rates.items()}
    return {"workload": args.workload, "new_tokens_per_second": rates, "median": medians,
            "ratio_bare": medians["rlvr"] / medians["bare"]}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workload", choices=WORKLOADS, default="W1")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each side")
    add_inputs(parser)
    parser.add_argument("--turn", choices=SIDES, help=argparse.SUPPRESS)
    args = checked_inputs(parser)
    if args.turn:
        turn(args)
        return
    report = measure(args)
    rlvr, alone = report["median"]["rlvr"], report["median"]["bare"]
    print(f"{args.workload}: rlvr {rlvr:.0f}, bare vLLM {alone:.0f} new tokens/s: ratio {report['ratio_bare']:.2f}")
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
