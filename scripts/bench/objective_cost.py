"""The objective's share of an update: all that an update does but the model's forward and backward and the optimizer.

    .venv/bin/python scripts/bench/objective_cost.py --workload W1 --json objective_cost.json

For every objective of recipes/objective, on one batch of the workload's shape: `prepare` (filters, advantages), cutting
into minibatches and microbatches, `weights`, `loss` with its backward down to the log-probs (and `value_loss` down to
the values), reading the metrics, `after_update`. Beside it stands one whole update of the policy by GRPO without KL.
A step also samples, so the share of a step is smaller than that of its update.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rlvr_step import TOKENS_PER_MICROBATCH
from step import ROOT, WORKLOADS, Workload
from torch import Tensor

from rlvr import objectives
from rlvr.batch import Batch, pack
from rlvr.commands.compose import YamlSource
from rlvr.commands.objective_table import specs
from rlvr.config import ModelConfig, PolicyConfig
from rlvr.objectives.objective import Objective
from rlvr.objectives.spec import ObjectiveSpec
from rlvr.policy.trainer import Policy

TOP_K = 20
UPDATES = 3


def make_batch(workload: Workload, vocabulary: int) -> Batch:
    """Random rows of the workload's lengths, with everything that any objective reads."""
    rng = torch.Generator().manual_seed(0)

    def tokens(count: int) -> list[int]:
        return torch.randint(vocabulary, (count,), generator=rng).tolist()

    prompts = [tokens(workload.prompt_tokens) for _ in range(workload.prompts_per_step)]
    batch = pack([(prompt, tokens(workload.new_tokens)) for prompt in prompts for _ in range(workload.group_size)])
    num_rows, size = batch.num_rows, batch.num_tokens

    def logprobs() -> Tensor:
        return torch.where(batch.loss_mask, -torch.rand(size, generator=rng) - 0.1, 0.0)

    batch.group_ids = torch.arange(num_rows) // workload.group_size
    batch.correct = torch.rand(num_rows, generator=rng) < 0.5
    batch.rewards = batch.correct.double()
    batch.rollout_logprobs, batch.old_logprobs, batch.ref_logprobs = logprobs(), logprobs(), logprobs()
    batch.values, batch.final_values = torch.randn(size, generator=rng), torch.randn(num_rows, generator=rng)
    batch.step_ends = batch.loss_mask & (torch.rand(size, generator=rng) < 0.1)
    batch.step_rewards = torch.rand(size, generator=rng).double()
    batch.topk_logprobs = torch.randn(size, 2 * TOP_K, generator=rng).log_softmax(-1)[:, :TOP_K].contiguous()
    batch.topk_ids = torch.randint(vocabulary, (size, TOP_K), generator=rng)
    return batch


def update_without_model(objective: Objective, batch: Batch, policy_logprobs: Tensor) -> None:
    """What `Loop.update` does with an objective, on given log-probs and values."""
    prepared, _ = objective.prepare(batch)
    for minibatch in prepared.minibatches(objective.spec.minibatches):
        weights = objective.weights(minibatch)
        for rows in minibatch.microbatch_rows(TOKENS_PER_MICROBATCH):
            part, tokens = minibatch.select(rows), minibatch.token_index(rows)
            current = policy_logprobs[tokens].requires_grad_()
            topk = part.topk_logprobs if objective.needs_top_k else None
            entropy = -current.detach()
            loss, metrics = objective.loss(current, part, weights[tokens], entropy, topk_logprobs=topk)
            if objective.needs_critic:
                values = part.values.clone().requires_grad_() if part.values is not None else current
                value_loss, value_metrics = objective.value_loss(values, part, weights[tokens])
                loss, metrics = loss + value_loss, metrics | value_metrics
            loss.backward()
            read = {name: float(value) for name, value in metrics.items()}
    objective.after_update(read, prepared.num_rows)


def median_seconds(work: Callable[[], object], repeats: int) -> float:
    """Of `repeats` calls after one that is not counted."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def measure(args: argparse.Namespace) -> dict[str, Any]:
    workload = WORKLOADS[args.workload]
    options = PolicyConfig(tokens_per_microbatch=TOKENS_PER_MICROBATCH)
    policy = Policy(ModelConfig(path=str(args.model)), options, total_updates=1000, temperature=1.0)
    batch = make_batch(workload, policy.model.head_weight.shape[0])
    grpo = build(ObjectiveSpec(), workload)
    say(f"{UPDATES + 1} updates of {batch.num_rows} rows, {batch.num_tokens:,} tokens")
    without_topk = replace(batch, topk_ids=None, topk_logprobs=None)
    update = median_seconds(lambda: policy.update(grpo.prepare(without_topk)[0], grpo), UPDATES)
    logprobs = policy.logprobs(batch)
    costs = {}
    for name, spec in specs(YamlSource()).items():
        objective = build(spec, workload)
        costs[name] = median_seconds(lambda o=objective: update_without_model(o, batch, logprobs), args.repeats)
    return {"workload": args.workload, "model": args.model.name, "update_seconds": update, "objective_seconds": costs}


def build(spec: ObjectiveSpec, workload: Workload) -> Objective:
    return objectives.build(spec, max_new_tokens=workload.new_tokens)


def table(report: dict[str, Any]) -> str:
    """Milliseconds and share of the update, the dearest first."""
    update = report["update_seconds"]
    lines = [f"{report['workload']}, {report['model']}: an update takes {update:.2f} s"]
    lines.append(f"{'objective':<24}{'ms':>8}{'share of the update':>22}")
    for name, seconds in sorted(report["objective_seconds"].items(), key=lambda item: -item[1]):
        lines.append(f"{name:<24}{1000 * seconds:>8.1f}{seconds / update:>22.2%}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workload", choices=WORKLOADS, default="W1")
    parser.add_argument("--repeats", type=int, default=5, help="of each objective; the median counts")
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "smollm2", help="see scripts/get_smollm2")
    parser.add_argument("--json", type=Path, help="file to write")
    args = parser.parse_args()
    if not args.model.exists():
        parser.error(f"{args.model} does not exist: give --model or run scripts/get_smollm2")
    report = measure(args)
    print(table(report))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
