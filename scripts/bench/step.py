"""Times one GRPO step of rlvr, with each engine, beside TRL's: same model, prompts, token counts and precision.

    .venv/bin/python scripts/bench/step.py --workload W1 --json step.json

Each side takes its turn in a fresh process (A B C A B C ...): one step that is not counted, then one that is.
Memory is the largest of that process and all it starts, watched ten times a second from start to end; a page that
several of them share, as they do libraries, counts once.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import floors
import psutil
import pyarrow.parquet as pq
from rlvr_step import PARTS
from transformers import AutoTokenizer

from rlvr.cli import prepared

ROOT = Path(__file__).resolve().parents[2]
TRL_PYTHON = ROOT / ".venv-trl" / "bin" / "python"
TRL = "trl==1.16.0"
UNSHARED = "-unshared"
NAMES = {
    "vllm": "rlvr, vllm",
    "hf": "rlvr, hf",
    "trl": "TRL",
    "vllm-unshared": "rlvr, vllm, prompts not shared",
    "hf-unshared": "rlvr, hf, prompts not shared",
}
MIB = 2**20
LOOKS_AT_ONE_TREE = 20  # to find the children takes a walk over all processes, on the cores that are timed
STEPS_PER_TURN = 2  # the first is not counted: it fills caches and makes the optimizer's state


@dataclass(frozen=True)
class Workload:
    """The size of a step; every completion has exactly `new_tokens` tokens."""

    prompts_per_step: int
    group_size: int
    prompt_tokens: int
    new_tokens: int
    trl_rows: int
    """TRL's rows per microbatch: as many as fit 24 GiB."""


WORKLOADS = {
    "W1": Workload(prompts_per_step=8, group_size=8, prompt_tokens=96, new_tokens=64, trl_rows=64),
    "W2": Workload(prompts_per_step=8, group_size=8, prompt_tokens=96, new_tokens=256, trl_rows=32),
    "W3": Workload(prompts_per_step=4, group_size=16, prompt_tokens=512, new_tokens=64, trl_rows=16),
}


@dataclass
class Side:
    """One contender and what its turns have shown."""

    name: str
    command: list[str]
    new_tokens: int
    """Tokens that each step must sample."""
    folder: Path
    """For what its process prints."""
    steps: list[dict[str, float]] = field(default_factory=list)
    """The counted step of each turn: seconds of each part, `prompt_tokens`, `new_tokens`."""
    peak_mib: float = 0.0

    def turn(self) -> dict[str, float]:
        """Runs the process to its end, watching its memory."""
        answers, log = self.folder / f"{self.name}.jsonl", self.folder / f"{self.name}.log"
        with answers.open("w") as stdout, log.open("w") as stderr:
            process = psutil.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=ROOT,
                env=None if self.name == "trl" else prepared(os.environ),
            )
            tree, most_resident, looks = [process], 0, 0
            try:
                while process.poll() is None:
                    try:
                        if looks % LOOKS_AT_ONE_TREE == 0:
                            tree = [process, *process.children(recursive=True)]
                        resident = sum(p.memory_info().rss for p in tree)
                        # To count shared pages once takes a walk over all pages: only for a new peak.
                        if resident > most_resident * 1.01:
                            most_resident = resident
                            self.peak_mib = max(self.peak_mib, sum(p.memory_full_info().pss for p in tree) / MIB)
                        looks += 1
                    except psutil.Error:  # a process has ended while it was looked at
                        looks = 0
                    time.sleep(0.1)
            finally:
                end(tree)
        lines = answers.read_text().splitlines()
        if process.returncode != 0 or len(lines) != STEPS_PER_TURN:
            sys.exit(
                f"{log.read_text()[-4000:]}\nstep: {self.name} ended with exit code {process.returncode}; see above"
            )
        for line in map(json.loads, lines):
            if line["new_tokens"] != self.new_tokens:
                sys.exit(f"step: {self.name} sampled {line['new_tokens']} tokens, not {self.new_tokens}")
        self.steps.append(json.loads(lines[-1]))
        return self.steps[-1]

    def result(self) -> dict[str, Any]:
        """Medians over the counted steps; `..._tokens_per_second` are new tokens over the seconds of that part.

        `other` is all of a step but generation, update, hand-over and its proof: scoring, data, bookkeeping.
        """
        median = {key: statistics.median(step[key] for step in self.steps) for key in self.steps[0]}
        main = ("generate", "update", "sync", "probe")
        others = [step["step"] - sum(step[part] for part in main) for step in self.steps]
        return {
            "seconds": {part: median[part] for part in PARTS} | {"other": statistics.median(others)},
            "prompt_tokens": median["prompt_tokens"],
            "new_tokens": median["new_tokens"],
            "generate_tokens_per_second": median["new_tokens"] / median["generate"],
            "step_tokens_per_second": median["new_tokens"] / median["step"],
            "peak_mib": self.peak_mib,
            "steps": self.steps,
        }


def end(processes: list[psutil.Process]) -> None:
    """Leaves none of them behind, however this program ends."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    args = parse_arguments()
    workload = WORKLOADS[args.workload]
    if args.trl_rows:
        workload = replace(workload, trl_rows=args.trl_rows)
    if "trl" in args.sides:
        install_trl()
    folder = Path(tempfile.mkdtemp(prefix="rlvr-bench-"))
    prompts = folder / "prompts.jsonl"
    problems = read_rows(args, workload.prompt_tokens, workload.prompts_per_step * STEPS_PER_TURN)
    prompts.write_text("".join(json.dumps(row) + "\n" for row in problems))
    report = {"workload": args.workload, **asdict(workload), "repeats": args.repeats, "machine": machine(args)}
    num_new = workload.prompts_per_step * workload.group_size * workload.new_tokens
    sides = [Side(name, command(name, args, workload, prompts), num_new, folder) for name in args.sides]
    for turn in range(1, args.repeats + 1):
        for side in sides:
            say(f"turn {turn} of {args.repeats}: {side.name}")
            say(f"  {side.turn()['step']:.1f} s")
    report["sides"] = {side.name: side.result() for side in sides}
    report |= ratios(report["sides"])
    rates = floors.measure()
    rows = workload.prompts_per_step * workload.group_size
    once = statistics.median(side["prompt_tokens"] for side in report["sides"].values()) / workload.group_size
    report["rates"] = asdict(rates)
    report["floors"] = floors.work_of(str(args.model), rows, round(once), num_new).floors(rates)
    print(table(report))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workload", choices=WORKLOADS, default="W1")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each side")
    add_inputs(parser)
    parser.add_argument("--sides", nargs="+", choices=NAMES, default=["vllm", "hf", "trl"])
    parser.add_argument(
        "--compile", action="store_true", help="rollout.compile=true: vLLM takes a minute more to start"
    )
    parser.add_argument("--trl-rows", type=int, help="TRL's rows per microbatch instead of the workload's")
    parser.add_argument("--trl-checkpointing", action="store_true", help="gradient checkpointing, TRL's default")
    return checked_inputs(parser)


def add_inputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "smollm2", help="see scripts/get_smollm2")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "gsm8k" / "train.parquet")


def checked_inputs(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments, if model and data are there."""
    args = parser.parse_args()
    args.model = args.model.resolve()
    for path, mend in ((args.model, "give --model or run scripts/get_smollm2"), (args.data, "give --data")):
        if not path.exists():
            parser.error(f"{path} does not exist: {mend}")
    return args


def install_trl() -> None:
    """TRL in an environment of its own, with this environment's torch and transformers."""
    if TRL_PYTHON.exists() and subprocess.run([TRL_PYTHON, "-c", "import trl"], capture_output=True).returncode == 0:
        return
    say(f"installing {TRL} into {TRL_PYTHON.parents[1]}")
    venv.create(TRL_PYTHON.parents[1], with_pip=True, clear=True)
    wanted = [f"torch=={version('torch')}", f"transformers=={version('transformers')}", TRL]
    install = [str(TRL_PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
    if subprocess.run(install, capture_output=True).returncode != 0:
        subprocess.run([*install, "--extra-index-url", "https://download.pytorch.org/whl/cpu"], check=True)


def read_rows(args: argparse.Namespace, num_tokens: int, count: int) -> list[dict[str, str]]:
    """GSM8K questions, joined while they are too short, that take about `num_tokens` under the chat template."""
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    rows: list[dict[str, str]] = []
    questions: list[str] = []
    for source in pq.read_table(args.data).to_pylist():
        questions.append(source["question"])
        row = {"question": "\n\n".join(questions), "answer": source["answer"].split("####")[-1].strip()}
        message = [{"role": "user", "content": row["question"]}]
        text = str(tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True))
        missing = num_tokens - len(tokenizer(text)["input_ids"])
        if abs(missing) <= num_tokens // 12:
            rows.append(row)
        if missing <= num_tokens // 12:
            questions = []
        if len(rows) == count:
            return rows
    sys.exit(f"step: {args.data} gives only {len(rows)} prompts of about {num_tokens} tokens, {count} are needed")


def command(name: str, args: argparse.Namespace, workload: Workload, prompts: Path) -> list[str]:
    here = Path(__file__).parent
    if name == "trl":
        program = [str(TRL_PYTHON), str(here / "trl_step.py"), "--rows-per-microbatch", str(workload.trl_rows)]
        program += ["--gradient-checkpointing"] if args.trl_checkpointing else []
    else:
        program = [sys.executable, str(here / "rlvr_step.py"), "--engine", name.removesuffix(UNSHARED)]
        program += ["--no-shared-prompts"] if name.endswith(UNSHARED) else []
        program += ["--compile"] if args.compile and name.startswith("vllm") else []
    program += ["--prompts-per-step", str(workload.prompts_per_step), "--group-size", str(workload.group_size)]
    return [*program, "--new-tokens", str(workload.new_tokens), "--model", str(args.model), "--prompts", str(prompts)]


def machine(args: argparse.Namespace) -> dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo")
    models = [line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "load_average_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
        "trl": TRL.split("==")[1] + (", gradient checkpointing" if args.trl_checkpointing else ""),
        "vllm": "compiled" if args.compile else "eager",
        "model": args.model.name,
        "precision": "bfloat16 with float32 master weights",
        "date": datetime.date.today().isoformat(),
    }


def ratios(sides: dict[str, Any]) -> dict[str, float]:
    """TRL's over ours: `ratio_trl_time` and `ratio_trl_memory` for vLLM, `..._hf` for the hf engine.

    `ratio_unshared_time` and `..._hf`: a step without shared prompts over one with them; `..._update` of the updates.
    """
    found: dict[str, float] = {}
    for name, suffix in (("vllm", ""), ("hf", "_hf")):
        if "trl" in sides and name in sides:
            trl, own = sides["trl"], sides[name]
            found[f"ratio_trl_time{suffix}"] = trl["seconds"]["step"] / own["seconds"]["step"]
            found[f"ratio_trl_memory{suffix}"] = trl["peak_mib"] / own["peak_mib"]
        if name + UNSHARED in sides and name in sides:
            whole, own = sides[name + UNSHARED]["seconds"], sides[name]["seconds"]
            found[f"ratio_unshared_time{suffix}"] = whole["step"] / own["step"]
            found[f"ratio_unshared_update{suffix}"] = whole["update"] / own["update"]
    return found


def table(report: dict[str, Any]) -> str:
    names = NAMES | {"trl": f"TRL {report['machine']['trl']}"}
    columns = [*PARTS, "other"]
    head = f"{'median seconds':<30}" + "".join(f"{part:>10}" for part in columns) + f"{'tokens/s':>10}{'peak MiB':>10}"
    lines = [f"{report['workload']}: {report['machine']['cpu']}, {report['machine']['cores']} cores", head]
    for name, side in report["sides"].items():
        cells = "".join(f"{side['seconds'][part]:>10.2f}" for part in columns)
        lines.append(f"{names[name]:<30}{cells}{side['step_tokens_per_second']:>10.0f}{side['peak_mib']:>10.0f}")
    least, rates = report["floors"], report["rates"]
    speed = f"{rates['flops'] / 1e9:.0f} GFLOP/s in bfloat16, {rates['bandwidth'] / 1e9:.1f} GB/s"
    lines.append(f"floors at {speed}: " + ", ".join(f"{part} {seconds:.2f} s" for part, seconds in least.items()))
    for name, side in report["sides"].items():
        times = (f"{part} {side['seconds'][part] / floor:.1f}" for part, floor in least.items())
        lines.append(f"{names[name]}, times its floor: " + ", ".join(times))
    lines += [f"{name} = {value:.2f}" for name, value in report.items() if name.startswith("ratio_")]
    return "\n".join(lines)


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
