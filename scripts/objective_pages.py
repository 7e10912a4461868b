"""Writes recipes/objective/README.md: a section a method, from the YAML files' head comments and values.

.venv/bin/python scripts/objective_pages.py
"""

from __future__ import annotations

import re
from pathlib import Path

from rlvr.commands.compose import RECIPES, YamlSource
from rlvr.commands.objective_table import specs, table
from rlvr.commands.recipes import head_comment
from rlvr.objectives import formula
from rlvr.objectives.spec import ObjectiveSpec

PAGE = RECIPES / "objective" / "README.md"
SOURCE = YamlSource()

HEAD = """# Objectives

Each file here is one method: a choice on each axis of the objective, every one a key that can be changed from the
shell (`objective.advantage.baseline=leave_one_out`). `rlvr explain recipe=NAME objective=METHOD` shows what a run would
compute.

This page is written by `scripts/objective_pages.py` from the files' comments and values; the formulas are those that
`rlvr explain` composes from the values. `quickstart` trains without KL to a reference, whichever the method; put it
back as in `objective.kl={placement: loss, estimator: k3, coef: 0.04}`.

## Method × axis

`rlvr recipes objective` prints this table: the axes, and below each method every other key that is not the default.

"""


def page() -> str:
    """The whole text."""
    objectives = specs(SOURCE)
    sections = [section(name, file, objectives[name]) for name, file in SOURCE.choices("objective").items()]
    return "\n".join([HEAD + fenced(table(objectives)), *legend(), *sections])


def legend() -> list[str]:
    """What the symbols mean that the formulas use and do not define."""
    meanings = {**formula.MEANINGS, "p, q": "probability of the token under π and under the ratio's denominator"}
    lines = [f"- `{symbol}`: {meaning}" for symbol, meaning in meanings.items()]
    return ["", "## Symbols", "", "`_i` is of a row (a completion), `_t` of a token, `_p` of a prompt.", "", *lines]


def section(name: str, file: Path, spec: ObjectiveSpec) -> str:
    """Sentence, formula, source, defaults, neighbour and command of one method."""
    said = paragraphs(head_comment(file))
    equations = formula.equations(spec)
    width = max(len(symbol) for symbol, _ in equations)
    lines = [f"{symbol:<{width}} = {right}" for symbol, right in equations]
    lines += [f"left out: {what}" for what in formula.left_out(spec)]
    notes = [f"- {said[label]}" for label in ("Source", "Defaults", "Differs from")]
    command = f"- `rlvr train recipe=quickstart objective={name}`"
    return "\n".join(["", f"## {name}", "", said[""], "", fenced(lines), "", *notes, command])


def paragraphs(lines: list[str]) -> dict[str, str]:
    """Label -> text of a head comment's parts, the label included; the first has none."""
    found, label = {"": lines[0]}, ""
    for line in lines[1:]:
        start = re.match(r"(Source|Defaults|Differs from|loss)\b", line)
        label = start[1] if start else label
        found[label] = f"{found[label]} {line}" if label in found else line
    return found


def fenced(lines: list[str]) -> str:
    return "\n".join(["```", *lines, "```"])


if __name__ == "__main__":
    PAGE.write_text(page() + "\n", encoding="utf-8")
