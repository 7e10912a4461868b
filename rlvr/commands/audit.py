"""`rlvr verify --audit verifier=NAME data=NAME`: can a verifier be trusted with every reference of a data set?

It must accept the reference in its own words and reject a perturbed one (`rlvr.scoring.audit`).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlvr.commands.compose import YamlSource, compose, spelled_out, verifiers_as_list
from rlvr.config import DataConfig, ScoringConfig
from rlvr.data.mapping import BrokenRowError, RowMapping
from rlvr.data.sources import read_rows, source_name
from rlvr.errors import ConfigError, DataError
from rlvr.observe.console import Console, counted
from rlvr.records import Prompt
from rlvr.scoring import Scorer, audit
from rlvr.validation import STRICT, validate
from rlvr.verifiers.registry import check

_SAMPLE_ROWS = 1000
_SHOWN = 20


@dataclass(frozen=True)
class AuditRunConfig:
    """One audit of a data set's references."""

    __pydantic_config__ = STRICT

    data: DataConfig = field(default_factory=DataConfig)
    verifier: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Verifiers by name, each with its own options."""
    output: str | None = None
    """JSON-lines file that receives {file, row, problem} of every row that fails."""
    scoring: ScoringConfig = field(default_factory=ScoringConfig)


@dataclass(frozen=True)
class Failure:
    """A row whose reference cannot be trusted."""

    file: str
    row: int
    """Counted from 1."""
    problem: str


def main(argv: Sequence[str]) -> int:
    """Runs the audit; 0 also where rows fail.

    Raises:
        RlvrError: a wrong option, or data that cannot be read.
    """
    config = audit_run_config(argv, YamlSource(primary="audit", options=AuditRunConfig))
    console = Console()
    with Scorer(config.verifier, config.scoring.workers, config.scoring.deadline_seconds) as scorer:
        num_rows, num_silent, failures = audit_rows(config.data, scorer)
        if scorer.verifier.outcome is None:
            console.say("no verifier here writes its own test: only whether it can read the references is looked at")
    source = source_name(config.data.path, config.data.name, config.data.split)
    for line in report(source, num_rows, num_silent, failures):
        console.say(line)
    if config.output is not None:
        Path(config.output).write_text("".join(json.dumps(vars(failure)) + "\n" for failure in failures))
    return 0


def audit_run_config(argv: Sequence[str], source: YamlSource) -> AuditRunConfig:
    """The options of a command line.

    Raises:
        ConfigError: no verifier or data, an unknown choice, or a wrong key or value.
    """
    overrides = [spelled_out(text, ("data",), source) for text in verifiers_as_list(argv, source)]
    for key, what in (("verifier", "a verifier"), ("data", "a data set")):
        if not any(text.startswith((f"{key}=", f"{key}.")) for text in overrides):
            raise ConfigError(key, None, f"name {what}: {key}=NAME, one of {', '.join(source.choices(key))}")
    composed = compose(overrides, source)
    composed.values.pop("rollout", None)  # for the verifiers' files alone
    config = validate(AuditRunConfig, composed.values)
    check(config.verifier, config.scoring.deadline_seconds)
    if config.output is not None and not Path(config.output).parent.is_dir():
        raise ConfigError("output", config.output, "its folder is not there")
    return config


def audit_rows(data: DataConfig, scorer: Scorer) -> tuple[int, int, list[Failure]]:
    """Number of rows, of those without a right answer that do not fail, and those that fail: broken, or with defects.

    Raises:
        DataError: no such data, no row, or a missing column.
    """
    rows = itertools.islice(read_rows(data.path, data.name, data.split), data.limit)
    first = list(itertools.islice(rows, _SAMPLE_ROWS))
    readable = [row.values for row in first if row.values is not None]
    if not readable:
        raise DataError(f"data.path={data.path}: there is no row in it")
    mapping = RowMapping(data, readable)
    num_rows = 0
    failures: list[Failure] = []
    places: list[tuple[str, int]] = []
    prompts: list[Prompt] = []
    for row in itertools.chain(first, rows):
        num_rows += 1
        try:
            problem = mapping(row.values)
        except BrokenRowError as error:
            failures.append(Failure(row.file, row.number, str(error)))
            continue
        prompts.append(Prompt(str(len(places)), "", [], problem.reference, row.file, problem.question, problem.extra))
        places.append((row.file, row.number))
    problems: dict[str, str] = {}
    audited = audit(scorer, prompts)
    for defect in audited.defects:
        problems.setdefault(defect.prompt.id, defect.problem)  # what a broken reference rejects is no further news
    failures += [Failure(*places[int(number)], problem) for number, problem in problems.items()]
    num_silent = len(audited.silent - problems.keys())
    return num_rows, num_silent, sorted(failures, key=lambda failure: (failure.file, failure.row))


def report(source: str, num_rows: int, num_silent: int, failures: Sequence[Failure]) -> list[str]:
    """The verdict in one line, then the first rows that fail."""
    failing = len(failures)
    sound = num_rows - failing - num_silent
    lines = [f"{source}: {counted(num_rows, 'row')}, {sound:,} sound, {failing:,} with defects"]
    if num_silent:
        lines[0] += f", {num_silent:,} without a right answer: of them only that a wrong one fails was seen"
    lines += [f"  {failure.file} row {failure.row}: {failure.problem}" for failure in failures[:_SHOWN]]
    if failing > _SHOWN:
        lines.append(f"  and {failing - _SHOWN:,} more; output=FILE lists all")
    return lines
