"""Times verdicts: programs in the sandbox beside a plain subprocess each, and answers beside math-verify alone.

    .venv/bin/python scripts/bench/verify.py --json verify.json

Every side takes its turn in every round (A B C A B C ...), in one run on one machine; the table shows the median round.
"Workers" is the number of processes that work at the same time; the rate is of all together, per core of each.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

from rlvr.verifiers.base import Case
from rlvr.verifiers.code import Code
from rlvr.verifiers.math import Math
from rlvr.verifiers.sandbox import levels
from rlvr.verifiers.sandbox.box import Sandbox
from rlvr.verifiers.sandbox.options import LEVELS, Limits, SandboxOptions

PROGRAM = "print(sum(int(x) for x in input().split()))"
STDIN = "1 2 3\n"
LIMITS = Limits(cpu_seconds=5, wall_seconds=20)
ANSWERS = [rf"\frac{{{3 * i + 1}}}{{{2 * i + 3}}}" for i in range(100)] + [rf"{i}\sqrt{{{i + 2}}}" for i in range(100)]


def plain_subprocess(count: int) -> None:
    """An interpreter a test, without any isolation."""
    for _ in range(count):
        done = subprocess.run([sys.executable, "-I", "-S", "-c", PROGRAM], input=STDIN, capture_output=True, text=True)
        assert done.stdout == "6\n"


def sandboxed(level: str, python: str | None, count: int) -> None:
    """A fork server's child a test."""
    sandbox = _warm(level, python)
    for _ in range(count):
        assert sandbox.program(PROGRAM, STDIN, LIMITS).stdout == b"6\n"


def verdicts(count: int) -> None:
    """The whole verifier: a program and three asserts a verdict."""
    verify = _verifier()
    for i in range(count):
        case = Case(f"```python\ndef f(x):\n    return x + {i}\n```", [f"assert f({n}) == {n + i}" for n in range(3)])
        assert verify(case).is_correct


def math_verdicts(count: int) -> None:
    """This package's verifier, every answer new to it."""
    verify = Math()
    for i in itertools.islice(_fresh, count):
        answer = ANSWERS[i % len(ANSWERS)]
        assert verify(Case(rf"so \boxed{{{answer}+{i}}}", f"{answer}+{i}")).is_correct


def math_verify_alone(count: int) -> None:
    """`math_verify.verify(parse(gold), parse(answer))`, golds wrapped as it wants them."""
    from math_verify import parse
    from math_verify import verify as equal

    for i in itertools.islice(_fresh, count):
        answer = ANSWERS[i % len(ANSWERS)]
        assert equal(parse(f"${answer}+{i}$"), parse(rf"so \boxed{{{answer}+{i}}}"))


_open: dict[object, object] = {}
_fresh = itertools.count()  # an answer seen before would be answered from the cache


def _warm(level: str, python: str | None) -> Sandbox:
    found = _open.get((level, python))
    if not isinstance(found, Sandbox):
        found = _open[level, python] = Sandbox(level, SandboxOptions(python=python))  # type: ignore[arg-type]
        found.program(PROGRAM, STDIN, LIMITS)
    return found


def _verifier() -> Code:
    found = _open.get("code")
    if not isinstance(found, Code):
        found = _open["code"] = Code()
        found(Case("```python\nx = 1\n```", ["assert x == 1"]))
    return found


def sides(workers: int, scale: float) -> dict[str, tuple[Callable[..., None], tuple[object, ...], int]]:
    """Name -> what to run, with which arguments, how often in a round."""
    python = usable_python()
    chosen: dict[str, tuple[Callable[..., None], tuple[object, ...], int]] = {
        "program: plain subprocess, no isolation": (plain_subprocess, (), int(100 * scale))
    }
    for level in LEVELS[:-1]:
        if why := levels.failure(level, SandboxOptions(python=python)):
            print(f"left out: {level}: {why}", file=sys.stderr)
        else:
            chosen[f"program: sandbox, {level}"] = (sandboxed, (level, python), int(400 * scale))
    chosen["verdict: three asserts, level auto"] = (verdicts, (), int(400 * scale))
    if workers == 1:
        chosen["answer: math verifier"] = (math_verdicts, (), int(2000 * scale))
        chosen["answer: math-verify alone"] = (math_verify_alone, (), int(200 * scale))
    return chosen


def usable_python() -> str | None:
    """None for this interpreter; a system's where another user may not read this one."""
    if levels.failure("landlock", SandboxOptions()) and Path("/usr/bin/python3").exists():
        return "/usr/bin/python3"
    return None


def measure(workers: int, rounds: int, scale: float) -> list[dict[str, object]]:
    """One row a side."""
    chosen = sides(workers, scale)
    rates: dict[str, list[float]] = {name: [] for name in chosen}
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        for round_number in range(rounds + 1):
            for name, (run, arguments, count) in chosen.items():
                started = time.perf_counter()
                for done in [pool.submit(run, *arguments, count) for _ in range(workers)]:
                    done.result()
                if round_number:  # the first starts servers and imports
                    rates[name].append(workers * count / (time.perf_counter() - started))
    cores = min(workers, len(os.sched_getaffinity(0)))
    return [
        {
            "what": name,
            "workers": workers,
            "per_second": round(statistics.median(found), 1),
            "per_second_per_core": round(statistics.median(found) / cores, 1),
            "rounds": [round(rate, 1) for rate in found],
        }
        for name, found in rates.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="work of a round; 0.1 for a quick look")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = [row for workers in options.workers for row in measure(workers, options.rounds, options.scale)]
    print(f"{'':<44}{'workers':>8}{'a second':>12}{'per core':>12}")
    for row in rows:
        print(f"{row['what']:<44}{row['workers']:>8}{row['per_second']:>12,}{row['per_second_per_core']:>12,}")
    if options.json:
        machine = {
            "cores": len(os.sched_getaffinity(0)),
            "kernel": platform.release(),
            "python": sys.version.split()[0],
        }
        with contextlib.suppress(FileNotFoundError):
            lines = Path("/proc/cpuinfo").read_text().splitlines()
            machine["processor"] = next((line.split(": ")[1] for line in lines if "model name" in line), "")
        report = {"date": datetime.date.today().isoformat(), "machine": machine, "rows": rows}
        report["math-verify"] = version("math-verify")
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
