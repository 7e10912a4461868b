"""The table method × axis, from the objectives' YAML."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import yaml

from rlvr.commands.compose import YamlSource, compose, flow
from rlvr.objectives.legality import BOUNDED
from rlvr.objectives.spec import ObjectiveSpec
from rlvr.validation import flat_fields, validate

WIDTH = 118


def _trust(spec: ObjectiveSpec) -> str:
    if spec.trust.kind not in BOUNDED:
        return spec.trust.kind
    bounds = [f"{bound:g}" for bound in dict.fromkeys([spec.trust.low, spec.trust.high])]
    return f"{spec.trust.kind} {'/'.join(bounds)}"


def _kl(spec: ObjectiveSpec) -> str:
    return "none" if spec.kl.placement == "none" else f"{spec.kl.placement} {spec.kl.estimator} {spec.kl.coef:g}"


COLUMNS: dict[str, Callable[[ObjectiveSpec], str]] = {
    "baseline": attrgetter("advantage.baseline"),
    "scale": attrgetter("advantage.scale"),
    "ratio": attrgetter("ratio.level"),
    "trust region, bounds": _trust,
    "aggregate": attrgetter("aggregate"),
    "KL to reference": _kl,
}
IN_COLUMNS = {
    "advantage.baseline",
    "advantage.scale",
    "ratio.level",
    "trust.kind",
    "trust.low",
    "trust.high",
    "aggregate",
    "kl.placement",
    "kl.estimator",
    "kl.coef",
}


def specs(source: YamlSource) -> dict[str, ObjectiveSpec]:
    """Name -> spec of each choice of the group `objective`.

    Raises:
        RlvrError: a file that does not compose, or has a wrong key, type or range.
    """
    choices = source.choices("objective")
    return {name: validate(ObjectiveSpec, _values(name, file, source), "objective") for name, file in choices.items()}


def _values(name: str, file: Path, source: YamlSource) -> dict[str, Any]:
    text = file.read_text(encoding="utf-8")
    if any(mark in text for mark in ("defaults:", "${", "@package")):
        composed: dict[str, Any] = compose([f"objective={name}", "~recipe"], source).values["objective"]
        return composed
    content: dict[str, Any] = yaml.safe_load(text)  # Hydra would give the same, a tenth of a second later
    return content


def table(objectives: dict[str, ObjectiveSpec]) -> list[str]:
    """One row an objective; below it, every other key that is not the default."""
    rows = [["", *COLUMNS], *([name, *(cell(spec) for cell in COLUMNS.values())] for name, spec in objectives.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    indent = " " * (widths[0] + 2)
    table = lines[:1]
    for line, spec in zip(lines[1:], objectives.values(), strict=True):
        table += [line, *textwrap.wrap(" ".join(others(spec)), WIDTH, initial_indent=indent, subsequent_indent=indent)]
    return table


def others(spec: ObjectiveSpec) -> list[str]:
    """`key=value` of each key that no column shows and that is not the default."""
    values = ((key, attrgetter(key)(spec), default) for key, _, default, _ in flat_fields(ObjectiveSpec))
    return [f"{key}={flow(value)}" for key, value, default in values if value != default and key not in IN_COLUMNS]
