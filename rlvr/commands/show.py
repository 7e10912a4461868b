"""`rlvr show RUN [step=N]`: a run's curves, or the rollouts of one step, in the terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import Field

from rlvr.errors import ConfigError, DataError
from rlvr.observe.console import COLUMNS, counted
from rlvr.observe.health import Health
from rlvr.observe.loggers import METRICS_FILE, read_metrics
from rlvr.observe.rollouts import PART_PREFIX, read_rollouts, recorded_steps
from rlvr.records import Status
from rlvr.validation import STRICT, flat_fields, validate

if TYPE_CHECKING:
    from rich.console import Console

BARS = "▁▂▃▄▅▆▇█"
CURVE_WIDTH = 40
SHOWN_CHARACTERS = (1200, 800)  # of a long text, from its start and its end
STYLES: dict[Status, str] = {"correct": "green", "wrong": "red", "no_answer": "yellow", "truncated": "yellow"}
FAULT_STYLE = "magenta"


@dataclass(frozen=True)
class ShowOptions:
    """What is shown of a run."""

    __pydantic_config__ = STRICT

    step: Annotated[int, Field(ge=0)] | None = None
    """Show this step's rollouts instead of the run's curves."""
    status: Status | None = None
    """Only rollouts with this verdict."""
    limit: Annotated[int, Field(gt=0)] = 5
    """Most prompts shown."""


def main(argv: list[str]) -> int:
    """Runs `rlvr show`.

    Raises:
        ConfigError: a wrong option.
        DataError: no such run, or no rollouts of that step.
    """
    from rich.console import Console

    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0 if argv else 2
    run, options = Path(argv[0]), _options(argv[1:])
    if not (run / METRICS_FILE).is_file():
        what = "holds no run" if run.is_dir() else "does not exist"
        raise DataError(
            f"{run}: this folder {what} ({METRICS_FILE} is missing); name a run's folder, as runs/quickstart"
        )
    console = Console(highlight=False, soft_wrap=True)
    if options.step is None:
        show_curves(run, console)
    else:
        show_rollouts(run, options.step, options, console)
    return 0


def usage() -> str:
    """The text of `rlvr show --help`."""
    rows = [f"  {key:<8} {meaning}" for key, _, _, meaning in flat_fields(ShowOptions)]
    statuses = ", ".join(get_args(Status))
    head = "usage: rlvr show RUN [step=N] [status=NAME] [limit=N]"
    return "\n".join([head, "", *rows, "", f"statuses: {statuses}"])


def _options(argv: Sequence[str]) -> ShowOptions:
    values: dict[str, Any] = {}
    for text in argv:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(key, None, "an option is written key=value, as step=10")
        values[key] = int(value) if value.isdigit() else value
    return validate(ShowOptions, values)


def show_curves(run: Path, console: Console) -> None:
    """First and last value and a curve of each metric, evaluations, and the alarms of the whole run."""
    rows = read_metrics(run / METRICS_FILE)
    if not rows:
        console.print(f"{run}: no step is done yet")
        return
    console.print(f"{run}: steps {rows[0]['step']} to {rows[-1]['step']}", style="bold")
    console.print(f"  {'':<12}{'first':>10}{'last':>10}  ")
    for column in COLUMNS:
        curve = [row.get(column.metric) for row in rows]
        numbers = [value for value in curve if value is not None]
        if numbers:
            first, last = column.form.format(numbers[0]), column.form.format(numbers[-1])
            console.print(f"  {column.heading:<12}{first:>10}{last:>10}  {sparkline(curve)}")
    for line in _evaluations(run):
        console.print(line)
    health = Health()
    for row in rows:
        for warning in health.check(row):
            console.print(f"  step {row['step']}: {warning}", style="yellow", markup=False)
    steps = recorded_steps(run)
    if steps:
        console.print(f"  rollouts of steps {steps[0]} to {steps[-1]}: rlvr show {run} step={steps[-1]}")


def _evaluations(run: Path) -> Iterator[str]:
    for file in sorted((run / "eval").glob("step-*.json")):
        found = json.loads(file.read_text(encoding="utf-8"))
        names = [name for name in found if "@" in name and not name.endswith(("_low", "_high"))]
        cells = [_with_interval(name, *(found[key] for key in (name, f"{name}_low", f"{name}_high"))) for name in names]
        yield f"  evaluation, step {found['step']}: {', '.join(cells)}"


def _with_interval(name: str, value: float | None, low: float | None, high: float | None) -> str:
    if value is None or low is None or high is None:
        return f"{name} -"
    return f"{name} {value:.1%} ({low:.1%} to {high:.1%})"


def sparkline(values: Sequence[float | None], width: int = CURVE_WIDTH) -> str:
    """A curve in one line; a longer one is averaged over neighbours, what is missing is blank.

    >>> sparkline([0.0, 0.5, None, 1.0]), sparkline([3.0, 3.0]), sparkline([0.0, 1.0, 6.0, 8.0], width=2)
    ('▁▅ █', '▄▄', '▁█')
    """
    size = math.ceil(len(values) / width)
    means = []
    for start in range(0, len(values), size):
        known = [value for value in values[start : start + size] if value is not None]
        means.append(sum(known) / len(known) if known else None)
    present = [mean for mean in means if mean is not None]
    low, high = min(present, default=0.0), max(present, default=0.0)
    return "".join(" " if mean is None else _bar(mean, low, high) for mean in means)


def _bar(value: float, low: float, high: float) -> str:
    if high <= low:
        return BARS[3]
    return BARS[min(int((value - low) / (high - low) * len(BARS)), len(BARS) - 1)]


def show_rollouts(run: Path, step: int, options: ShowOptions, console: Console) -> None:
    """Prompts of a step, each with the best and the worst of its rollouts."""
    rows = [row for row in read_rollouts(run, step) if options.status in (None, row["status"])]
    groups: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    which = f" with status {options.status}" if options.status else ""
    console.print(
        f"{run}, step {step}: {counted(len(rows), 'rollout')} of {counted(len(groups), 'prompt')}{which}", style="bold"
    )
    for group in list(groups.values())[: options.limit]:
        _show_group(group, console)
    if len(groups) > options.limit:
        console.print(f"\n{len(groups) - options.limit} more prompts: limit={len(groups)}")


def _show_group(group: Sequence[dict[str, Any]], console: Console) -> None:
    first = group[0]
    correct = sum(row["status"] == "correct" for row in group)
    console.print(f"\nprompt {first['prompt_id']}: {correct} of {len(group)} correct", style="bold")
    console.print(_printable(first["question"] or first["prompt"]), markup=False)
    console.print(f"reference: {_printable(first['reference'])}", style="dim", markup=False)
    ranked = sorted(group, key=lambda row: row["reward"], reverse=True)
    _show_rollout("best" if len(group) > 1 else "only one", ranked[0], console)
    if len(group) > 1:
        _show_rollout("worst", ranked[-1], console)


def _show_rollout(title: str, row: dict[str, Any], console: Console) -> None:
    parts = {name.removeprefix(PART_PREFIX): row[name] for name in row if name.startswith(PART_PREFIX)}
    facts = [
        f"reward {row['reward']:.3g}" + "".join(f", {name} {v:.3g}" for name, v in parts.items() if v is not None),
        row["status"] + (f" ({_printable(row['detail'])})" if row["detail"] else ""),
        f"answer {_printable(row['extracted'])}" if row["extracted"] is not None else "no answer found",
        f"{row['num_tokens']} tokens, {row['finish_reason']}",
    ]
    style = STYLES.get(row["status"], FAULT_STYLE)
    console.print(f"  {title} (sample {row['sample']}): {'; '.join(facts)}", style=style, markup=False)
    for line in _printable(_shortened(row["response"])).splitlines():
        console.print(f"    {line}", markup=False)


def _shortened(text: str) -> str:
    head, tail = SHOWN_CHARACTERS
    left_out = len(text) - head - tail
    return text if left_out <= 0 else f"{text[:head]}\n[... {left_out:,} characters ...]\n{text[-tail:]}"


def _printable(text: str) -> str:
    """Escapes control characters: a model's text must not steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
