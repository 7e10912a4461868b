"""One GRPO step of rlvr on a GPU, with models of the Qwen2.5 shapes: how near each part comes to the machine's rates.

    .venv/bin/python scripts/bench/gpu_step.py --shape 1.5B --prompts 128 --new-tokens 4096 --json gpu.json

Random weights and random prompts; next to no completion ends before its full length. Steps as the loop takes them
(generate, update, hand over), one that is not counted first. Operations are those of any trainer: 6 a parameter and
token, the prompt of a group once, the head for new tokens only, causal attention over the tokens seen; what is computed
again does not count.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import random
import sys
import tempfile
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import floors
import torch
from qwen import SHAPES, Shape, write_model

from rlvr import objectives
from rlvr.batch import collate
from rlvr.config import ModelConfig, PolicyConfig, RolloutConfig
from rlvr.objectives.spec import ObjectiveSpec
from rlvr.policy.trainer import Policy
from rlvr.records import Completion, Group, Prompt, Rollout, Verdict
from rlvr.rollout.engine import Request, RolloutEngine, Sampling, sample_seed
from rlvr.rollout.factory import build_engine

GIB = 2**30


def update_flops(shape: Shape, body: int, groups: list[Group]) -> float:
    """Floating-point operations of forward and backward: 3 times those of forward.

    Args:
        body: parameters that every token goes through: all but embedding and head.
    """
    num_tokens = num_new = pairs = 0
    for group in groups:
        prompt = len(group.prompt.token_ids)
        num_tokens += prompt
        pairs += prompt * (prompt + 1) // 2
        for rollout in group.rollouts:
            new = len(rollout.completion.token_ids)
            num_new += new
            pairs += new * prompt + new * (new + 1) // 2
    products = body * (num_tokens + num_new) + shape.hidden * shape.vocabulary * num_new
    attention = 2 * pairs * shape.hidden * shape.layers  # each pair: a product with the key, one with the value
    return 6 * (products + attention)


class Step:
    """The parts of a run and what its steps take."""

    def __init__(self, args: argparse.Namespace, folder: Path, device: str) -> None:
        self.args, self.shape, self.device, self.number = args, SHAPES[args.shape], device, 0
        tokenizer = write_model(self.shape, folder, device)
        torch.cuda.empty_cache()
        rollout = RolloutConfig(
            engine=args.engine,
            group_size=args.group_size,
            max_new_tokens=args.new_tokens,
            max_num_seqs=min(args.prompts * args.group_size, args.max_num_seqs),
            gpu_memory=args.gpu_memory,
            compile=args.compile,
        )
        options = PolicyConfig(
            prompts_per_step=args.prompts,
            tokens_per_microbatch=args.tokens_per_microbatch,
            gradient_checkpointing=args.gradient_checkpointing,
            device=device,
        )
        model = ModelConfig(path=str(folder))
        self.policy = Policy(model, options, total_updates=1000, temperature=1.0)
        shared = self.policy.model.module
        self.engine: RolloutEngine = build_engine(rollout, model, tokenizer, args.prompt_tokens, shared)
        self.objective = objectives.build(ObjectiveSpec(), max_new_tokens=args.new_tokens)
        self.hand_over()

    def take(self) -> dict[str, float]:
        """Seconds of each part of one step, its size, and the most GPU memory in use at the end of a part."""
        groups: list[Group] = []
        taken = {"generate": floors.seconds_of(lambda: groups.extend(self.generate()))}
        used = [self.gpu_memory()]
        taken["update"] = floors.seconds_of(lambda: self.update(groups))
        used.append(self.gpu_memory())
        taken["hand_over"] = floors.seconds_of(self.hand_over)
        self.number += 1
        return taken | {
            "peak_bytes": max(*used, self.gpu_memory()),
            "new_tokens": sum(len(rollout.completion.token_ids) for group in groups for rollout in group.rollouts),
            "update_flops": update_flops(self.shape, floors.body_of(self.policy.model.module), groups),
        }

    def generate(self) -> list[Group]:
        args, rng = self.args, random.Random(self.number)
        words = range(self.shape.vocabulary - 1)
        prompts = [Prompt(str(i), "", rng.choices(words, k=args.prompt_tokens), None, "") for i in range(args.prompts)]
        seeds = [[sample_seed(0, self.number, p.id, i) for i in range(args.group_size)] for p in prompts]
        requests = [Request(p.token_ids, of) for p, of in zip(prompts, seeds, strict=True)]
        groups = [Group(prompt, []) for prompt in prompts]
        for index, completions in self.engine.generate(requests, Sampling(args.new_tokens)):
            groups[index] = Group(prompts[index], [scored(c, i) for i, c in enumerate(completions)])
        return groups

    def update(self, groups: list[Group]) -> None:
        self.engine.sleep()
        batch = collate(groups, decode=str)
        self.policy.annotate(batch, self.objective)
        batch, _ = self.objective.prepare(batch)
        self.policy.update(batch, self.objective)
        self.engine.wake()

    def hand_over(self) -> None:
        self.engine.load_weights(self.policy.weights(), self.policy.version)

    def gpu_memory(self) -> int:
        """Bytes that all processes on the GPU hold now; PyTorch keeps what it needed once. 0 without a GPU."""
        if self.device == "cpu":
            return 0
        free, total = torch.cuda.mem_get_info()
        return total - free

    def report(self, steps: list[dict[str, float]], rates: floors.Rates) -> dict[str, Any]:
        """Medians, and their shares of what the rates allow."""
        seconds = {part: median(step[part] for step in steps) for part in ("generate", "update", "hand_over")}
        weights = sum(p.numel() * p.element_size() for p in self.policy.model.module.parameters())
        rate = median(step["update_flops"] / step["update"] for step in steps)
        return {
            "parameters": self.policy.num_parameters,
            "seconds": seconds,
            "update_flops_per_second": rate,
            "update_share_of_matrix_rate": rate / rates.flops,
            "generate_tokens_per_second": median(step["new_tokens"] / step["generate"] for step in steps),
            "hand_over_bytes_per_second": weights / seconds["hand_over"],
            "hand_over_share_of_bandwidth": 2 * weights / seconds["hand_over"] / rates.bandwidth,
            "peak_gpu_gib": max(step["peak_bytes"] for step in steps) / GIB if self.device == "cuda" else None,
            "steps": steps,
        }


def scored(completion: Completion, index: int) -> Rollout:
    """Rewards that differ within every group, so that each row has an advantage to train on."""
    return Rollout(completion, Verdict(index % 2, "correct" if index % 2 else "wrong"))


def table(report: dict[str, Any]) -> str:
    """One row of the README's table, under its head."""
    seconds, memory = report["seconds"], report["peak_gpu_gib"]
    cells = {
        "shape": report["shape"],
        "prompts x samples": f"{report['prompts']} x {report['group_size']}",
        "prompt + new tokens": f"{report['prompt_tokens']} + {report['new_tokens']}",
        "generate": f"{seconds['generate']:.2f} s",
        "new tokens/s": f"{report['generate_tokens_per_second']:,.0f} ({report['engine']})",
        "update": f"{seconds['update']:.2f} s",
        "of the matrix rate": f"{report['update_share_of_matrix_rate']:.1%}",
        "hand-over": f"{seconds['hand_over']:.3f} s",
        "GB/s": f"{report['hand_over_bytes_per_second'] / 1e9:.1f}",
        "peak GPU memory": "not measured" if memory is None else f"{memory:.1f} GiB",
    }
    rates = report["rates"]
    head = f"{report['machine']['device']}: {rates['flops'] / 1e12:.2f} TFLOP/s in bfloat16"
    rows = [list(cells), ["---"] * len(cells), list(cells.values())]
    return "\n".join([f"{head}, {rates['bandwidth'] / 1e9:.0f} GB/s", "", *(f"| {' | '.join(row)} |" for row in rows)])


def main() -> None:
    args = parse_arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and args.shape != "toy":
        print(f"gpu_step: --shape {args.shape} needs an NVIDIA GPU and torch sees none: not measured", file=sys.stderr)
        sys.exit(2)
    rates = floors.measure(device)
    with tempfile.TemporaryDirectory(prefix="rlvr-bench-") as folder:
        step = Step(args, Path(folder), device)
        try:
            steps = [step.take() for _ in range(args.steps + 1)][1:]
            report = {
                **{name: value for name, value in vars(args).items() if name != "json"},
                "rates": asdict(rates),
                "machine": {
                    "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
                    "torch": version("torch"),
                    "transformers": version("transformers"),
                    "date": datetime.date.today().isoformat(),
                },
                **step.report(steps, rates),
            }
        finally:
            step.engine.close()
    print(table(report))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")


def parse_arguments() -> argparse.Namespace:
    engine = "vllm" if importlib.util.find_spec("vllm") else "hf"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shape", choices=SHAPES, required=True, help="toy runs on a CPU too")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--group-size", type=int, default=8, help="at least 2")
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--new-tokens", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=2, help="counted ones; the median is reported")
    parser.add_argument("--engine", choices=["vllm", "hf"], default=engine, help="vllm where it is installed")
    parser.add_argument("--max-num-seqs", type=int, default=1024)
    parser.add_argument("--tokens-per-microbatch", type=int, default=PolicyConfig().tokens_per_microbatch)
    parser.add_argument("--gradient-checkpointing", choices=["none", "full", "selective"], default="none")
    parser.add_argument("--gpu-memory", type=float, default=RolloutConfig().gpu_memory, help="vLLM's share")
    parser.add_argument("--compile", action="store_true", help="rollout.compile")
    parser.add_argument("--json", type=Path, help="file to write")
    return parser.parse_args()


if __name__ == "__main__":
    main()
