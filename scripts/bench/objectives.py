"""Trains the quickstart task with every objective and compares them over seeds: a table and a plot.

    .venv/bin/python scripts/bench/objectives.py                            # all of recipes/objective, seeds 0 1 2
    .venv/bin/python scripts/bench/objectives.py --presets grpo dapo --seeds 0 --jobs 2
    .venv/bin/python scripts/bench/objectives.py --report                   # of the runs that are done

What finished runs found is kept in objectives.json beside this file, and one that was stopped goes on from its
checkpoint, so it can be done in parts, on one machine or several. All runs of a seed begin with one cold start. Two
runs at once on one core each take less time than one after the other on both. The plot needs matplotlib:
.venv/bin/pip install matplotlib
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlvr.commands.compose import YamlSource

ROOT = Path(__file__).resolve().parents[2]
SOLVED = 0.8  # training accuracy that `steps_to_80` waits for
WINDOW = 5  # steps that it is averaged over
LAST = 10  # steps at the end that the entropy is averaged over
STEPS = 60
# Half the recipe's batch at twice its rate: GRPO is past `SOLVED` by step 40, in a third of the time.
SMALLER = ("policy.prompts_per_step=32", "policy.learning_rate=3.0e-4")
REFUSED = 2  # rlvr's exit code for input that is the user's to mend
INTERRUPTED = 130
# What a run keeps besides its metrics would be 26 x 3 times as much; one trial batch tells for all of them.
FRUGAL = ("log.rollouts=false", "checkpoint.keep=1", "preflight=off")
SETTINGS = {
    # Eight optimizer steps a batch that no narrow clip bounds: at the others' rate they forget the cold start.
    "clip_cov": ("policy.learning_rate=4.0e-5",),
    "kl_cov": ("policy.learning_rate=4.0e-5",),
    # What its own page says to set for rows and runs as short as these.
    "vapo": ("objective.critic.warmup_steps=15", "objective.critic.lam_alpha=1"),
}


@dataclass(frozen=True)
class Result:
    """One finished run."""

    before: float
    """Held-out accuracy of the cold-started model, 0 to 1."""
    accuracy: float
    """Held-out accuracy after the last step."""
    steps_to_80: int | None
    """First step at which the training accuracy of the last `WINDOW` steps averages `SOLVED`; None: never."""
    clip_fraction: float | None
    """Mean over the steps of the share of tokens that the trust region acts on; None without a ratio."""
    entropy: float | None
    """Nats a token, mean of the last steps; None where the policy was not trained in them."""
    curve: list[float]
    """Training accuracy of each step."""


@dataclass(frozen=True)
class Bench:
    """Where the runs lie and how long they are."""

    folder: Path
    steps: int
    record: Path
    """JSON file that keeps what finished runs found."""
    threads: int
    """Of one run."""
    _recording: threading.Lock = field(default_factory=threading.Lock)

    def results(self) -> dict[str, dict[int, Result]]:
        """Preset -> seed -> what its finished run found."""
        if not self.record.exists():
            return {}
        kept = json.loads(self.record.read_text())
        if kept["steps"] != self.steps:
            sys.exit(f"objectives: {self.record} is of runs of {kept['steps']} steps, not {self.steps}; give --record")
        return {
            name: {int(seed): Result(**values) for seed, values in seeds.items()}
            for name, seeds in kept["runs"].items()
        }

    def keep(self, preset: str, seed: int) -> None:
        """Adds a finished run to the record."""
        result = read_run(self.run_folder(preset, seed), self.steps)
        with self._recording:
            found = self.results()
            found.setdefault(preset, {})[seed] = result
            runs = {
                name: {seed: asdict(seeds[seed]) for seed in sorted(seeds)} for name, seeds in sorted(found.items())
            }
            unfinished = self.record.with_suffix(".tmp")
            unfinished.write_text(json.dumps({"steps": self.steps, "runs": runs}, indent=1) + "\n")
            unfinished.replace(self.record)

    def run_folder(self, preset: str, seed: int) -> Path:
        return self.folder / f"{preset}-seed{seed}"

    def start_model(self, seed: int) -> Path:
        """The model that the seed's runs begin with: a cold start made by a run of one step."""
        folder = self.folder / f"start-seed{seed}" / "cold_start"
        if not folder.exists():
            say(f"cold start, seed {seed}")
            code, log = self._train(f"start-seed{seed}", seed, "steps=1", "eval.every=0")
            if code:
                sys.exit(f"objectives: the cold start ended with exit code {code}: {last_line(log)}")
        return folder

    def train(self, preset: str, seed: int) -> str | None:
        """Trains unless that is done, and keeps what came out; what stands in the way, or None."""
        if seed in self.results().get(preset, {}):
            return None
        if finished(self.run_folder(preset, seed), self.steps):
            self.keep(preset, seed)
            return None
        began = time.monotonic()
        start = [f"model.path={self.start_model(seed)}", "cold_start.steps=0", *SETTINGS.get(preset, ())]
        name = self.run_folder(preset, seed).name
        code, log = self._train(name, seed, f"objective={preset}", f"steps={self.steps}", "resume=auto", *start)
        if code == INTERRUPTED:
            return "stopped; the same command goes on"
        if code:
            return ("refused: " if code == REFUSED else "failed: ") + last_line(log).removeprefix("error: ")
        self.keep(preset, seed)
        say(f"{preset}, seed {seed}: {time.monotonic() - began:.0f} s")
        return None

    def _train(self, name: str, seed: int, *overrides: str) -> tuple[int, Path]:
        """Exit code of one `rlvr train`, and what it printed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{name}.log"
        command = [sys.executable, "-m", "rlvr.cli", "train", "recipe=quickstart", f"name={name}", f"seed={seed}"]
        command += [f"output={self.folder}", f"eval.every={self.steps}", *SMALLER, *FRUGAL, *overrides]
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads)}
        with log.open("w") as output:
            done = subprocess.run(command, stdout=output, stderr=output, cwd=ROOT, env=environment, check=False)
        return done.returncode, log


def finished(folder: Path, steps: int) -> bool:
    """Whether the run is trained and evaluated."""
    return (folder / "eval" / f"step-{steps:06d}.json").is_file()


def read_run(folder: Path, steps: int) -> Result:
    """The figures of a finished run, from its `metrics.jsonl` and evaluations."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    before, after = (json.loads((folder / "eval" / f"step-{s:06d}.json").read_text()) for s in (0, steps))
    curve = [round(row["accuracy"], 3) for row in rows]
    return Result(
        before=before["avg@1"],
        accuracy=after["avg@1"],
        steps_to_80=steps_to(curve, SOLVED),
        clip_fraction=mean_of(rows, "policy/clip_fraction"),
        entropy=mean_of(rows[-LAST:], "policy/entropy"),
        curve=curve,
    )


def mean_of(rows: Sequence[dict[str, Any]], metric: str) -> float | None:
    """Over the steps that have the metric; None where none has."""
    known = [row[metric] for row in rows if row.get(metric) is not None]
    return statistics.fmean(known) if known else None


def steps_to(curve: Sequence[float], level: float) -> int | None:
    """The first step whose last `WINDOW` values average `level`; None: never."""
    for step in range(WINDOW, len(curve) + 1):
        if statistics.fmean(curve[step - WINDOW : step]) >= level:
            return step
    return None


def spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """Mean, smallest and largest of the values that are there; None without any."""
    known = [value for value in values if value is not None]
    return {"mean": statistics.fmean(known), "low": min(known), "high": max(known)} if known else None


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """Each figure over the seeds, and how many of them reached `SOLVED`."""
    figures = ("before", "accuracy", "steps_to_80", "clip_fraction", "entropy")
    found: dict[str, Any] = {name: spread([getattr(result, name) for result in results]) for name in figures}
    return {**found, "seeds": len(results), "solved": sum(result.steps_to_80 is not None for result in results)}


def table(presets: dict[str, dict[str, Any]]) -> str:
    """Markdown, the best first; presets without a finished run come last, with the reason."""
    lines = [
        "| objective | final accuracy | steps to 80 % | clipped fraction | entropy, nats | seeds |",
        "|---|---|---|---|---|---|",
    ]
    done = {name: row for name, row in presets.items() if row.get("seeds")}
    for name in sorted(done, key=lambda name: -done[name]["accuracy"]["mean"]):
        row = done[name]
        reached = cell(row["steps_to_80"], "{:.0f}")
        if 0 < row["solved"] < row["seeds"]:
            reached += f" in {row['solved']} of {row['seeds']}"
        cells = [name, cell(row["accuracy"], "{:.1%}"), reached, cell(row["clip_fraction"], "{:.2%}")]
        lines.append("| " + " | ".join([*cells, cell(row["entropy"], "{:.3f}"), str(row["seeds"])]) + " |")
    for name, row in presets.items():
        if name not in done:
            lines.append(f"| {name} | {row['problem']} | | | | 0 |")
    lines += ["", *(f"{name}: `{' '.join(keys)}`" for name, keys in SETTINGS.items() if name in presets)]
    return "\n".join(lines)


def cell(value: dict[str, float] | None, form: str) -> str:
    """`mean (low to high)`; the range is left out where there is none."""
    if value is None:
        return "-"
    mean, low, high = (form.format(value[key]) for key in ("mean", "low", "high"))
    return mean if low == high else f"{mean} ({low} to {high})"


def plot(presets: dict[str, dict[str, Any]], file: Path) -> None:
    """One panel an objective: its training accuracy, mean and range over the seeds, before all the others' in grey."""
    curves = {name: row["curves"] for name, row in presets.items() if row.get("curves")}
    if not curves:
        say("no plot: no run is done")
        return
    try:
        import matplotlib
    except ImportError:
        say("no plot: it needs matplotlib, .venv/bin/pip install matplotlib")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(6, len(curves))
    rows = math.ceil(len(curves) / columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(2.4 * columns, 1.8 * rows + 0.4), sharex=True, sharey=True, squeeze=False
    )
    over_seeds = {name: list(zip(*seeds, strict=False)) for name, seeds in curves.items()}
    means = {name: [statistics.fmean(values) for values in steps] for name, steps in over_seeds.items()}
    for axis, name in zip(axes.flat, curves, strict=False):
        for other in means.values():
            axis.plot(range(1, len(other) + 1), other, color="0.85", linewidth=0.6)
        steps = range(1, len(means[name]) + 1)
        lowest, highest = ([pick(values) for values in over_seeds[name]] for pick in (min, max))
        axis.fill_between(steps, lowest, highest, alpha=0.4, zorder=3)
        axis.plot(steps, means[name], linewidth=1.4, zorder=4)
        axis.set_title(name, fontsize=9)
        axis.set_ylim(0, 1)
    for axis in axes.flat[len(curves) :]:
        axis.set_visible(False)
    figure.supxlabel("step")
    figure.supylabel("training accuracy")
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    say(f"plot: {file}")


def main() -> int:
    known = list(YamlSource().choices("objective"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--presets", nargs="+", choices=known, default=known, metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of a run ({STEPS})")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once; each gets its share of the cores (1)")
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "objectives", help="folder of all runs")
    parser.add_argument("--record", type=Path, default=Path(__file__).with_suffix(".json"), help="JSON file of results")
    parser.add_argument("--report", action="store_true", help="train nothing")
    args = parser.parse_args()
    # The learning rate falls to 0 at the last step: runs of other lengths are other runs.
    threads = max(1, len(os.sched_getaffinity(0)) // args.jobs)
    bench = Bench(args.output.resolve() / f"{args.steps}-steps", args.steps, args.record, threads)
    problems = {} if args.report else train_all(bench, args.presets, args.seeds, args.jobs)
    results = bench.results()
    presets = {name: report(results.get(name, {}), problems.get(name, "not run")) for name in args.presets}
    print(table(presets))
    plot(presets, args.record.with_suffix(".png"))
    return 1 if any(problem.startswith("failed") for problem in problems.values()) else 0


def train_all(bench: Bench, presets: Sequence[str], seeds: Sequence[int], jobs: int) -> dict[str, str]:
    """Trains what is not done yet; preset -> what stood in the way."""
    problems: dict[str, str] = {}

    def train(preset: str, seed: int) -> None:
        problem = bench.train(preset, seed)
        if problem:
            problems[preset] = problem
            say(f"{preset}, seed {seed}: {problem}")

    with ThreadPoolExecutor(jobs) as pool:
        for seed in seeds:
            bench.start_model(seed)
            runs = [pool.submit(train, preset, seed) for preset in presets]
            try:
                for run in runs:
                    run.result()
            except KeyboardInterrupt:  # the runs under way have got it too, and save a checkpoint
                pool.shutdown(cancel_futures=True)
                sys.exit("objectives: stopped; the same command goes on")
    return problems


def report(runs: dict[int, Result], problem: str) -> dict[str, Any]:
    """The figures over a preset's runs; the problem where there is none."""
    if not runs:
        return {"problem": problem}
    return {**summary(list(runs.values())), "curves": [result.curve for result in runs.values()]}


def last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
