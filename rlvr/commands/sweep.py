"""`rlvr train -m`: every combination of the swept values as a job of its own, through Hydra's launchers.

A job runs `rlvr train` in a fresh process, whichever launcher started it: Hydra's basic launcher runs the jobs one
after another, submitit's all at once or on a SLURM cluster. What a job prints goes to `JOB.log` in the sweep's folder,
whose last line is its exit code.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rlvr.commands.compose import YamlSource, compose, is_hydras, normalised, parse, quoted, session
from rlvr.config_checks import train_config
from rlvr.errors import ConfigError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

END = "exit code "
# Hydra's own outputs would only repeat what a run's folder holds; the launchers still need the sweep's folder.
QUIET = ("hydra.output_subdir=null", "hydra.sweep.subdir=.", "hydra/job_logging=none", "hydra/hydra_logging=none")


@dataclass(frozen=True)
class Job:
    """One combination of a sweep."""

    name: str
    """Its swept values, `seed=0,objective=grpo`; names its folder."""
    folder: Path
    """The sweep's folder, which holds the run's."""
    command: list[str]

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def run(self) -> Path:
        return self.folder / self.name


def run_sweep(overrides: list[str], source: YamlSource) -> int:
    """Validates every job, runs them, prints one table; 0 when all jobs succeeded.

    Raises:
        ConfigError: of any job, before the first one starts.
    """
    source.check()
    parsed = parse(overrides)
    hydras = [str(o.input_line) for o in parsed if is_hydras(o.key_or_group)]
    _check_launcher(hydras)
    tasks = [o for o in parsed if not is_hydras(o.key_or_group)]
    swept = {o.key_or_group for o in tasks if o.is_sweep_override()}
    combinations = _combinations(tasks, source)
    configs = [train_config(compose([*hydras, *combination], source).values) for combination in combinations]
    folder = _new_folder(Path(configs[0].output))
    jobs = _jobs(combinations, swept, folder, source)
    print(f"{len(jobs)} jobs into {folder}", flush=True)
    try:
        with session(source) as (hydra, primary, search):
            lines = [normalised(override, source) for override in tasks]
            settings = [search, *QUIET, f"hydra.sweep.dir={quoted(folder)}", *hydras]
            hydra.multirun(primary, partial(_run_job, jobs), [*lines, *settings], with_log_configuration=False)
    finally:
        failed = _print_table(jobs)
    return 1 if failed else 0


def _combinations(tasks: Sequence[Override], source: YamlSource) -> list[list[str]]:
    """The overrides of each job, in the order in which Hydra's sweeper takes them."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    lines = [normalised(override, source) for override in tasks]
    return BasicSweeper.split_arguments(parse(lines), max_batch_size=None)[0]


def _check_launcher(hydras: Sequence[str]) -> None:
    for line in hydras:
        key, _, launcher = line.partition("=")
        if key == "hydra/launcher" and launcher.endswith("slurm") and shutil.which("srun") is None:
            raise ConfigError(key, launcher, "there is no SLURM on this machine (srun is not in PATH); leave it out")


def _new_folder(output: Path) -> Path:
    """A folder that did not exist before, so that no sweep overwrites another."""
    stamp = time.strftime("sweep-%Y%m%d-%H%M%S")
    for suffix in ["", *(f"-{n}" for n in range(2, 100))]:
        folder = output / f"{stamp}{suffix}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError("output", str(output), f"the sweep's folder cannot be made: {error.strerror}") from error
        return folder
    raise ConfigError("output", str(output), f"{stamp} is taken a hundred times; wait a second")


def _jobs(combinations: list[list[str]], swept: set[str], folder: Path, source: YamlSource) -> list[Job]:
    jobs: list[Job] = []
    for number, combination in enumerate(combinations):
        parts = [line.lstrip("+") for line in combination if line.lstrip("+").partition("=")[0] in swept]
        text = re.sub(r"""['"\\]""", "", ",".join(parts))  # quotes and escapes of Hydra's grammar
        name = re.sub(r"[^\w.,=+-]+", "_", text) or "job"
        if any(job.name == name for job in jobs):
            name = f"{name}-{number}"
        flags = [f"--config-dir={source.config_dir}"] if source.config_dir else []
        flags += [f"--config-path={source.config_path}"] if source.config_path else []
        own = [f"++name={quoted(name)}", f"++output={quoted(folder)}"]
        command = [sys.executable, "-m", "rlvr.cli", "train", *flags, *combination, *own]
        jobs.append(Job(name, folder, command))
    return jobs


def _run_job(jobs: list[Job], _: Any) -> None:
    """What the launcher calls, here or in a process of its own: runs the job that Hydra numbered."""
    from hydra.core.hydra_config import HydraConfig

    number = HydraConfig.get().job.num
    job = jobs[number]
    print(f"\njob {number + 1}/{len(jobs)}: {job.name}", flush=True)
    with job.log.open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            job.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert process.stdout is not None
        try:
            _copy(process.stdout, log)
        finally:  # Ctrl-C reaches the job as well; it saves before it ends
            _copy(process.stdout, log)
            print(f"{END}{process.wait()}", file=log)


def _copy(lines: IO[str], log: IO[str]) -> None:
    for line in lines:
        print(line, end="", flush=True)
        print(line, end="", file=log, flush=True)


def _print_table(jobs: list[Job]) -> int:
    """Prints what became of each job; returns how many failed."""
    rows = [("job", "status", "reward", "accuracy", "evaluation", "folder")]
    errors, failed = [], 0
    for job in jobs:
        status, error = _outcome(job)
        failed += status != "done"
        rows.append((job.name, status, *_results(job.run), str(job.run)))
        if error:
            errors.append(f"{job.name}: {error}  (all of it: {job.log})")
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print()
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print("\n".join(["", *errors]) if errors else "", flush=True)
    return failed


def _outcome(job: Job) -> tuple[str, str]:
    """(done, failed, killed, interrupted, lost or not run; the job's last error line)."""
    if not job.log.exists():
        return "not run", ""
    *lines, last = [line for line in job.log.read_text(encoding="utf-8").splitlines() if line.strip()] or [""]
    if not last.startswith(END):
        return "lost", last
    code = int(last.removeprefix(END))
    if code == 0:
        return "done", ""
    error = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1] if lines else "")
    return "interrupted" if code == 130 else "killed" if code < 0 else f"failed ({code})", error


def _results(run: Path) -> tuple[str, str, str]:
    """The run's last reward and accuracy in training, and its newest evaluation."""
    metrics: dict[str, Any] = {}
    evaluation: dict[str, Any] = {}
    if (run / "metrics.jsonl").exists():
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        metrics = json.loads(lines[-1]) if lines else {}
    newest = max((run / "eval").glob("step-*.json"), default=None)
    if newest:
        evaluation = json.loads(newest.read_text(encoding="utf-8"))
    return _number(metrics.get("reward/mean")), _number(metrics.get("accuracy")), _number(evaluation.get("pass@1"))


def _number(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) else "-"
