"""What a run says while it works: coloured and live on a terminal, plain aligned lines in a log."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

HEADER_EVERY = 20  # rows of a step between two headers
PROGRESS_SECONDS = 30.0  # between two lines of progress in a log
PACE_STEPS = 20  # newest steps that the time left is reckoned from


@dataclass(frozen=True)
class Column:
    """One column of the table of steps: heading, metric, how its value is written."""

    heading: str
    metric: str
    form: str
    width: int = 8


COLUMNS = (
    Column("reward", "reward/mean", "{:.3f}"),
    Column("accuracy", "accuracy", "{:.1%}"),
    Column("length", "length/mean", "{:.1f}"),
    Column("cut", "length/truncated", "{:.1%}"),
    Column("entropy", "policy/entropy", "{:.3f}"),
    Column("mismatch", "mismatch/kl", "{:.1e}"),
    Column("clipped", "policy/clip_fraction", "{:.1%}"),
    Column("grad", "policy/grad_norm", "{:.3f}"),
    Column("seconds", "time/step", "{:.1f}"),
    Column("tokens/s", "tokens_per_second", "{:,.0f}"),
)


class Console:
    """Writes to the screen, and the same in plain text to `log`.

    Args:
        stream: the screen; standard output when unset.
        log: a file that plain lines are appended to as well (`run.log`).
        live: colours and moving progress bars; unset: when `stream` is a terminal.
        now: a clock in seconds.
    """

    def __init__(
        self,
        stream: IO[str] | None = None,
        log: Path | None = None,
        live: bool | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        from rich.console import Console as Screen

        stream = stream or sys.stdout
        with suppress(AttributeError):  # a screen that knows no "×" must not end the run
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
        self._live = stream.isatty() if live is None else live
        self._stream = stream
        self._screen = Screen(file=stream, force_terminal=True, highlight=False) if self._live else None
        self._log = log.open("a", encoding="utf-8") if log else None
        self._now = now
        self._rows = 0
        self._paces: deque[float] = deque(maxlen=PACE_STEPS)
        self._progress: Progress | None = None

    def say(self, text: str, style: str = "") -> None:
        """One or several lines; `style` is rich's (`bold`, `red`) and shows on a terminal only."""
        if self._screen is not None:
            self._screen.print(text, style=style, markup=False, soft_wrap=True)
        else:
            print(text, file=self._stream, flush=True)
        if self._log is not None:
            print(text, file=self._log, flush=True)

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}", "yellow")

    def banner(self, title: str, facts: Mapping[str, str]) -> None:
        """A title and aligned `name  value` lines."""
        self.say(title, "bold")
        width = max(map(len, facts), default=0)
        for name, value in facts.items():
            self.say(f"  {name:<{width}}  {value}")

    def step(self, step: int, num_steps: int, metrics: Mapping[str, float]) -> None:
        """One row of the table of steps; a metric that is missing or not finite shows as it is."""
        if self._rows % HEADER_EVERY == 0:
            cells = [f"{c.heading:>{c.width}}" for c in COLUMNS]
            self.say("  ".join([f"{'step':>9}", *cells, f"{'left':>8}"]), "bold")
        self._rows += 1
        self._paces.append(metrics.get("time/step", math.nan))
        left = (num_steps - step) * sum(self._paces) / len(self._paces)
        cells = [f"{_cell(c, metrics):>{c.width}}" for c in COLUMNS]
        self.say("  ".join([f"{f'{step}/{num_steps}':>9}", *cells, f"{duration(left):>8}"]))

    @contextmanager
    def progress(self, phase: str, total: int) -> Iterator[Callable[[int], None]]:
        """A long phase: yields `advance(count)`.

        A bar that vanishes at the end on a terminal; in a log nothing for 30 seconds, then a line each 30 seconds.
        """
        if self._screen is not None:
            with self._bar(phase, total) as advance:
                yield advance
            return
        start = spoken = self._now()
        done = 0

        def advance_in_log(count: int) -> None:
            nonlocal spoken, done
            done += count
            now = self._now()
            if now - spoken >= PROGRESS_SECONDS:
                spoken = now
                # Work that runs side by side ends late and together: an early share says nothing of the time left.
                left = (now - start) / done * (total - done) if done >= 0.1 * total else math.nan
                self.say(f"  {phase}: {done:,}/{total:,}, {duration(left)} left")

        yield advance_in_log

    @contextmanager
    def _bar(self, phase: str, total: int) -> Iterator[Callable[[int], None]]:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        if self._progress is None:
            columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._progress = Progress(*columns, console=self._screen, transient=True)
        bars = self._progress
        task = bars.add_task(phase, total=total)
        bars.start()
        try:
            yield lambda count: bars.advance(task, count)
        finally:
            bars.remove_task(task)
            if not bars.tasks:
                bars.stop()
                self._progress = None

    def summary(
        self, accuracies: Mapping[str, tuple[float, float, float]], folder: Path, next_steps: Sequence[str]
    ) -> None:
        """The end of a run.

        Args:
            accuracies: when -> (value, lower, upper bound), as shares; for example `before` and `after`.
            folder: the run's folder.
            next_steps: commands to try next, one a line.
        """
        width = max(map(len, accuracies), default=0)
        for when, (value, low, high) in accuracies.items():
            self.say(f"  {when:<{width}}  accuracy {value:.1%}  (95% interval {low:.1%} to {high:.1%})", "bold")
        self.say(f"  run folder  {folder}")
        if next_steps:
            self.say("  try next:")
        for line in next_steps:
            self.say(f"    {line}")

    def close(self) -> None:
        """Takes bars off the screen and closes the log. Safe to call twice."""
        if self._progress is not None:
            self._progress.stop()
        if self._log is not None:
            self._log.close()
            self._log = None


def batch_arithmetic(prompts: int, group_size: int, updates: int, microbatches: int | None = None) -> str:
    """How a step's rows divide; microbatches are cut by tokens, so their number is known only where lengths are.

    >>> batch_arithmetic(64, 16, 4, 8)
    '64 prompts × 16 samples = 1,024 rows → 4 updates × 8 microbatches'
    >>> batch_arithmetic(1, 8, 1)
    '1 prompt × 8 samples = 8 rows → 1 update'
    """
    rows = f"{counted(prompts, 'prompt')} × {counted(group_size, 'sample')} = {counted(prompts * group_size, 'row')}"
    cut = f" × {counted(microbatches, 'microbatch')}" if microbatches is not None else ""
    return f"{rows} → {counted(updates, 'update')}{cut}"


def counted(number: int, noun: str) -> str:
    """
    >>> counted(1, "prompt"), counted(2000, "batch")
    ('1 prompt', '2,000 batches')
    """
    plural = "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def duration(seconds: float) -> str:
    """
    >>> duration(75), duration(3700), duration(200_000), duration(float("nan"))
    ('1:15', '1:01:40', '2d 07:33', '-')
    """
    if not math.isfinite(seconds):
        return "-"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d {hours % 24:02}:{minute:02}"
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _cell(column: Column, metrics: Mapping[str, float]) -> str:
    value = metrics.get(column.metric)
    if value is None:
        return "-"
    return column.form.format(value) if math.isfinite(value) else str(value)
