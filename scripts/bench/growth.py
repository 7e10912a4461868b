"""How the time of a step grows with group size, completion length and batch: seconds, tokens, fitted exponents, a plot.

    .venv/bin/python scripts/bench/growth.py --json growth.json --plot growth.png

rlvr's own step on SmolLM2 as in step.py; each axis is doubled twice from the same smallest step, the others held. The
exponent b is that of the least-squares fit of log(seconds) = a + b log(new tokens): 1 is linear, below 1 means that a
fixed part, or the prompt, weighs less and less. The plot needs matplotlib: .venv/bin/pip install matplotlib
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from step import STEPS_PER_TURN, Side, Workload, add_inputs, checked_inputs, command, machine, read_rows, say

SMALLEST = Workload(prompts_per_step=4, group_size=4, prompt_tokens=96, new_tokens=32, trl_rows=0)
AXES = {"group size": "group_size", "completion length": "new_tokens", "prompts": "prompts_per_step"}
FACTORS = (1, 2, 4)
PARTS = ("generate", "update", "step")


def measure(args: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Axis -> its points: the value, new tokens, and seconds of each part."""
    done: dict[Workload, dict[str, Any]] = {}
    axes: dict[str, list[dict[str, Any]]] = {}
    for axis, field in AXES.items():
        axes[axis] = []
        for factor in FACTORS:
            workload = replace(SMALLEST, **{field: factor * getattr(SMALLEST, field)})
            if workload not in done:
                done[workload] = one_step(args, workload)
                say(f"{axis} {getattr(workload, field)}: {done[workload]['step']:.1f} s")
            axes[axis].append({"value": getattr(workload, field)} | done[workload])
    return axes


def one_step(args: argparse.Namespace, workload: Workload) -> dict[str, Any]:
    """Tokens and median seconds of one step's parts."""
    folder = Path(tempfile.mkdtemp(prefix="rlvr-growth-"))
    prompts = folder / "prompts.jsonl"
    problems = read_rows(args, workload.prompt_tokens, workload.prompts_per_step * STEPS_PER_TURN)
    prompts.write_text("".join(json.dumps(row) + "\n" for row in problems))
    new_tokens = workload.prompts_per_step * workload.group_size * workload.new_tokens
    side = Side(args.engine, command(args.engine, args, workload, prompts), new_tokens, folder)
    for _ in range(args.repeats):
        side.turn()
    result = side.result()
    return {"new_tokens": new_tokens} | {part: result["seconds"][part] for part in PARTS}


def exponent(points: list[dict[str, Any]], part: str) -> float:
    """Slope of log(seconds) over log(new tokens), by least squares."""
    x, y = ([math.log(point[name]) for point in points] for name in ("new_tokens", part))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return above / sum((a - mean_x) ** 2 for a in x)


def table(axes: dict[str, list[dict[str, Any]]]) -> str:
    """Markdown: one line an axis."""
    values = " | ".join(f"step at ×{factor}" for factor in FACTORS)
    lines = [f"| axis | {values} | exponent: generate | update | step |", "|---" * (len(FACTORS) + 4) + "|"]
    for axis, points in axes.items():
        cells = [f"{point['step']:.1f} s ({point['value']})" for point in points]
        cells += [f"{exponent(points, part):.2f}" for part in PARTS]
        lines.append(f"| {axis} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(axes: dict[str, list[dict[str, Any]]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(axes), figsize=(3.2 * len(axes), 2.8), sharey=True, squeeze=False)
    for panel, (axis, points) in zip(panels.flat, axes.items(), strict=True):
        for part in PARTS:
            label = f"{part}, {exponent(points, part):.2f}"
            panel.loglog([p["new_tokens"] for p in points], [p[part] for p in points], marker="o", label=label)
        panel.set_title(axis, fontsize=9)
        panel.legend(title="exponent", fontsize=7, title_fontsize=7)
        panel.set_xlabel("new tokens a step")
    panels.flat[0].set_ylabel("seconds")
    figure.tight_layout()
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_inputs(parser)
    parser.add_argument("--engine", choices=["vllm", "hf"], default="vllm")
    parser.add_argument("--repeats", type=int, default=1, help="turns of each point")
    parser.add_argument("--plot", type=Path, help="PNG file to write")
    args = checked_inputs(parser)
    args.trl_checkpointing = args.compile = False
    axes = measure(args)
    print(table(axes))
    if args.json:
        report = {"machine": machine(args), "engine": args.engine, "axes": axes}
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    if args.plot:
        plot(axes, args.plot)


if __name__ == "__main__":
    main()
