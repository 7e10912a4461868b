"""One training run from a validated configuration: its folder, its parts, the loop, and what is kept of each step."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rlvr import checkpoint
from rlvr.config import TrainConfig
from rlvr.config_file import save_config
from rlvr.errors import CheckpointError, ConfigError
from rlvr.observe.console import Console
from rlvr.observe.health import Health
from rlvr.observe.loggers import METRICS_FILE, open_loggers, read_metrics
from rlvr.observe.metrics import Clock, resident_gib
from rlvr.observe.rollouts import forget_rollouts, write_rollouts
from rlvr.records import Group, Prompt

if TYPE_CHECKING:
    from rlvr.loop import Loop

# May differ between a run and the run that goes on from it: how long, how often and where it is shown.
FREE_TO_CHANGE = ("name", "output", "steps", "resume", "preflight", "scoring", "eval", "checkpoint", "log")

INTERRUPTED = 130


def run_training(config: TrainConfig) -> int:
    """Trains as `config` says and returns the exit code: 0 when done, 130 after Ctrl-C and a checkpoint.

    Raises:
        RlvrError: bad data, model, checkpoint or hand-over; the message says how to mend it.
    """
    folder, saved = open_folder(config)
    config = replace(config, name=folder.name)
    with ExitStack() as stack:
        console = Console(log=folder / "run.log")
        stack.callback(console.close)
        save_config(config, folder)
        run = Run(config, folder, console, stack)
        run.start(saved)
        return run.finish() if run.train() else INTERRUPTED


def open_folder(config: TrainConfig) -> tuple[Path, Path | None]:
    """The run's folder and the checkpoint to go on from.

    `resume=never` takes the next free of NAME, NAME-2, NAME-3 …; `auto` the last of them; a path names it.

    Raises:
        CheckpointError: there is nothing to resume at the path given.
        ConfigError: the folder cannot be written.
    """
    taken = [config.folder, *(config.folder.with_name(f"{config.name}-{n}") for n in range(2, 10_000))]
    free = next(i for i, folder in enumerate(taken) if not folder.exists())
    if config.resume == "never":
        folder = taken[free]
    elif config.resume == "auto":
        folder = taken[max(free - 1, 0)]
    else:
        folder = Path(config.resume)
        if checkpoint.latest(folder / "checkpoints") is None:
            raise CheckpointError(f"resume={config.resume}: no whole checkpoint in {folder / 'checkpoints'}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError("output", config.output, f"{folder} cannot be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise ConfigError("output", config.output, f"no permission to write in {folder}")
    return folder, checkpoint.latest(folder / "checkpoints")


class Run:
    """A run's folder, loop and observers.

    Args:
        stack: closes the engine, the workers and the loggers.
    """

    loop: Loop

    def __init__(self, config: TrainConfig, folder: Path, console: Console, stack: ExitStack) -> None:
        self.config, self.folder, self.console, self._stack = config, folder, console, stack
        self._interrupted = False

    # ---- start

    def start(self, saved: Path | None) -> None:
        """Builds the parts, loads the checkpoint if there is one, and looks whether the run can learn."""
        from rlvr.assembly import assemble

        logging.basicConfig(level=logging.WARNING, format="warning: %(message)s", stream=sys.stderr)
        state = checkpoint.verify(saved) if saved else None
        if state:
            checkpoint.check_identity(state["identity"], identity(self.config))
        parts = assemble(self.config, self.folder, self.console, self._stack)
        self.loop, self._held_out = parts.loop, parts.held_out
        last_step = 0
        if saved and state:
            last_step = self._restore(saved, state)
            forget_rollouts(self.folder, last_step)
        history = read_metrics(self.folder / METRICS_FILE) if last_step else []
        self._health = Health(row for row in history if row["step"] <= last_step)
        self._loggers = open_loggers(self.config.log, self.folder, asdict(self.config), last_step)
        self._stack.callback(self._loggers.close)
        self.loop.sync(Clock())
        self._banner(parts.facts, last_step)
        if not last_step:
            self._preflight(parts.prompts)
            if self.config.eval.every:
                self._evaluate()

    def _restore(self, saved: Path, state: dict[str, Any]) -> int:
        self.loop.policy.load(saved)
        self.loop.sampler.load_state_dict(state["sampler"])
        self.loop.objective.load_state_dict(state["objective"])
        self.loop.step = int(state["step"])
        return self.loop.step

    def _preflight(self, prompts: list[Prompt]) -> None:
        from rlvr.preflight import preflight, refuse

        if self.config.preflight == "off":
            return
        findings = preflight(self.loop, prompts)
        for finding in findings:
            (self.console.say if finding.level == "ok" else self.console.warn)(f"  {finding.text}")
        if self.config.preflight == "refuse":
            refuse(findings)

    def _banner(self, facts: dict[str, str], last_step: int) -> None:
        going_on = f", going on after step {last_step}" if last_step else ""
        self.console.banner(f"rlvr {self.config.name}{going_on}", facts)

    # ---- steps

    def train(self) -> bool:
        """Does the steps that are left; False when it was interrupted (its state is saved then)."""
        with self._interruptible():
            for groups, metrics in self.loop.steps():
                self._observe(groups, metrics)
                step, last = self.loop.step, self.loop.step == self.config.steps
                if last or self._interrupted or _due(step, self.config.checkpoint.every):
                    self._save()
                if self._interrupted:
                    self.console.say(f"stopped after step {step}; go on with resume=auto")
                    return False
                if not last and _due(step, self.config.eval.every):
                    self._evaluate()
        return True

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """The first Ctrl-C (or SIGTERM) lets the step end and saves; the second stops at once."""

        def stop(number: int, frame: FrameType | None) -> None:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True
            self.console.say("stopping after this step, with a checkpoint; once more stops at once, without one")

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _observe(self, groups: list[Group], metrics: dict[str, float]) -> None:
        metrics["memory/rss_gib"] = resident_gib()
        self._loggers.log(self.loop.step, metrics)
        self.console.step(self.loop.step, self.config.steps, metrics)
        for warning in self._health.check(metrics):
            self.console.warn(warning)
        if self.config.log.rollouts:
            write_rollouts(self.folder, self.loop.step, groups)

    def _save(self) -> None:
        loop = self.loop
        state = {
            "step": loop.step,
            "sampler": loop.sampler.state_dict(),
            "objective": loop.objective.state_dict(),
            "identity": identity(self.config),
        }
        folder, keep = self.folder / "checkpoints", self.config.checkpoint.keep
        checkpoint.save(folder, loop.step, loop.policy.save, state, keep)

    def _evaluate(self) -> None:
        from rlvr.evaluate import evaluate, write_eval

        with self.console.progress("evaluate", len(self._held_out)) as advance:
            result = evaluate(
                self.loop.engine,
                self.loop.scorer,
                self._held_out,
                self.config.eval,
                self.config.rollout.max_new_tokens,
                self.config.seed,
                self.loop.step,
                advance,
            )
        write_eval(self.folder, result)

    # ---- end

    def finish(self) -> int:
        """Evaluates what came out and says where it lies."""
        accuracies = {}
        if self.config.eval.every:
            from rlvr.evaluate import read_interval

            self._evaluate()
            name = f"avg@{self.config.eval.samples}"
            found = {
                when: read_interval(self.folder, at, name) for when, at in (("before", 0), ("after", self.loop.step))
            }
            accuracies = {when: interval for when, interval in found.items() if interval is not None}
        self.console.summary(
            accuracies,
            self.folder,
            [
                f"rlvr show {self.folder} step={self.loop.step}",
                f"rlvr export {self.folder}",
                f"rlvr train --config-path {self.folder} seed={self.config.seed + 1}",
            ],
        )
        return 0


def identity(config: TrainConfig) -> dict[str, Any]:
    """The options that a run must keep when it goes on."""
    return {key: value for key, value in asdict(config).items() if key not in FREE_TO_CHANGE}


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
