"""`rlvr verify verifier=NAME input=ROWS.jsonl output=SCORES.jsonl`: runs verifiers over responses, without a model.

`rlvr verify --audit verifier=NAME data=NAME` looks at a data set's references instead (rlvr/commands/audit.py).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlvr.commands.compose import YamlSource, compose, verifiers_as_list
from rlvr.config import ScoringConfig
from rlvr.data.sources import SUFFIXES, Row, read_rows
from rlvr.errors import ConfigError, DataError
from rlvr.observe.console import Console, counted
from rlvr.records import Verdict
from rlvr.scoring import Scorer, status_counts
from rlvr.validation import STRICT, flat_fields, validate
from rlvr.verifiers.base import Case
from rlvr.verifiers.registry import build, check, verifier_options

SOURCE = YamlSource(primary="verify")


@dataclass(frozen=True)
class VerifyRunConfig:
    """One run of verifiers over a file."""

    __pydantic_config__ = STRICT

    input: str
    """Rows {id, response, reference} with prompt, finish_reason and num_tokens where a verifier asks for them."""
    output: str
    """JSON-lines file that receives {id, reward, status, parts, extracted}, in the order of the input."""
    verifier: dict[str, dict[str, Any]]
    """Verifiers by name, each with its own options; several are combined as a weighted sum."""
    scoring: ScoringConfig = field(default_factory=ScoringConfig)


def main(argv: list[str]) -> int:
    """Runs `rlvr verify`.

    Raises:
        RlvrError: a wrong option, or a row that is not a case.
    """
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0 if argv else 2
    if "--audit" in argv:
        from rlvr.commands import audit

        return audit.main([text for text in argv if text != "--audit"])
    config = verify_run_config(argv)
    # Started first: the workers import their libraries while the rows are read.
    with Scorer(config.verifier, config.scoring.workers, config.scoring.deadline_seconds) as scorer:
        ids, cases = read_cases(config)
        console = Console(stream=sys.stderr)
        with console.progress("verify", len(cases)) as advance:
            verdicts = scorer.score(cases, advance)
        seconds = [scorer.seconds[index] for index in range(len(cases))]
    write_scores(Path(config.output), ids, verdicts)
    for line in table(ids, verdicts, seconds):
        console.say(line)
    console.say(f"written to {config.output}")
    return 0


def verify_run_config(argv: list[str]) -> VerifyRunConfig:
    """The options of a command line.

    Raises:
        ConfigError: no verifier, input or output, an unknown choice, or a wrong key or value.
    """
    known = SOURCE.choices("verifier")
    overrides = verifiers_as_list(argv, SOURCE)
    for key, what in (("verifier", f"one or several of {', '.join(known)}"), ("input", "a file"), ("output", "a file")):
        if not any(text.startswith((f"{key}=", f"{key}.")) for text in overrides):
            raise ConfigError(key, None, f"name {what}: {key}=...")
    composed = compose(overrides, SOURCE)
    # What only comes from the defaults of a training run is none of a verification's keys.
    given = {key.split(".")[0] for key in composed.origins}
    config = validate(VerifyRunConfig, {key: value for key, value in composed.values.items() if key in given})
    check(config.verifier, config.scoring.deadline_seconds)
    source, output = Path(config.input).expanduser(), Path(config.output).expanduser()
    if not source.is_file():
        raise ConfigError("input", config.input, "there is no such file")
    if not source.name.endswith(SUFFIXES):
        raise ConfigError("input", config.input, f"only {', '.join(SUFFIXES)} files are read")
    if output.is_dir():
        raise ConfigError("output", config.output, "is a folder; name a file, as scores.jsonl")
    if output.exists() and output.samefile(source):
        raise ConfigError("output", config.output, "is the input; name another file")
    return config


def read_cases(config: VerifyRunConfig) -> tuple[list[Any], list[Case]]:
    """Ids and cases of the input's rows.

    Raises:
        DataError: the first row that is not a case; it names file, line and field.
    """
    needs_reference = build(config.verifier).outcome is not None
    ids: list[Any] = []
    cases: list[Case] = []
    for row in read_rows(str(Path(config.input).expanduser())):
        identity, case = as_case(row, needs_reference)
        ids.append(identity)
        cases.append(case)
    if not cases:
        raise DataError(f"{config.input}: there is no row in it")
    return ids, cases


def as_case(row: Row, needs_reference: bool) -> tuple[Any, Case]:
    """One row as (id, case); fields that are none of a case's go to `extra`.

    Raises:
        DataError: a field that is missing or of the wrong type.
    """
    values = dict(row.values) if row.values is not None else None
    if values is None:
        raise DataError(f"{row.file}, line {row.number}: not a JSON object")
    required = ["id", "response", *(["reference"] if needs_reference else [])]
    for name in required:
        if name not in values:
            raise DataError(f"{row.file}, line {row.number}: the field {name!r} is missing")
    fields: Mapping[str, tuple[type, Any]] = {
        "response": (str, None),
        "prompt": (str, ""),
        "finish_reason": (str, "stop"),
        "num_tokens": (int, 0),
    }
    for name, (kind, default) in fields.items():
        values[name] = default if name not in required and values.get(name) is None else values[name]
        if not isinstance(values[name], kind) or isinstance(values[name], bool):
            wanted = "text" if kind is str else "a whole number"
            raise DataError(f"{row.file}, line {row.number}: {name!r} must be {wanted}, not {values[name]!r:.80}")
    if values["finish_reason"] not in ("stop", "length"):
        found = values["finish_reason"]
        raise DataError(f"{row.file}, line {row.number}: 'finish_reason' must be stop or length, not {found!r:.80}")
    identity, reference = values.pop("id"), values.pop("reference", None)
    case = {name: values.pop(name) for name in fields}
    return identity, Case(reference=reference, extra=values, **case)


def write_scores(path: Path, ids: Sequence[Any], verdicts: Sequence[Verdict]) -> None:
    """One JSON object a line, in the order given.

    Raises:
        DataError: the file cannot be written.
    """
    path = path.expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="ascii") as lines:
            for identity, verdict in zip(ids, verdicts, strict=True):
                row = {
                    "id": identity,
                    "reward": verdict.reward,
                    "status": verdict.status,
                    "parts": verdict.parts,
                    "extracted": verdict.extracted,
                }
                lines.write(json.dumps(row) + "\n")
    except OSError as error:
        raise DataError(f"output={path}: cannot be written ({error.strerror})") from error


def table(ids: Sequence[Any], verdicts: Sequence[Verdict], seconds: Sequence[float]) -> list[str]:
    """Counts by status, mean reward and parts, and what the time was spent on."""
    total = len(verdicts)
    lines = [f"{counted(total, 'row')}, mean reward {np.mean([verdict.reward for verdict in verdicts]):.4f}"]
    lines += [f"  {status:<18}{count:>8,}   {count / total:.1%}" for status, count in status_counts(verdicts).items()]
    for name in dict.fromkeys(name for verdict in verdicts for name in verdict.parts):
        mean = np.mean([verdict.parts[name] for verdict in verdicts if name in verdict.parts])
        lines.append(f"  {f'part {name}':<18}{mean:>8.4f}   mean, unweighted")
    middle, high, highest = np.percentile(seconds, [50, 95, 99])
    slowest = int(np.argmax(seconds))
    times = f"p50 {middle * 1e3:.1f} ms, p95 {high * 1e3:.1f} ms, p99 {highest * 1e3:.1f} ms"
    times += f", max {max(seconds):.2f} s (id {ids[slowest]})"
    return [*lines, f"  {'time a row':<18}{times}"]


def usage() -> str:
    """The text of `rlvr verify --help`."""
    head = "usage: rlvr verify verifier=NAME|[NAME,...] input=ROWS.jsonl output=SCORES.jsonl [key=value ...]"
    audit = (
        "       rlvr verify --audit verifier=NAME data=NAME [output=DEFECTS.jsonl] looks at a data set's references;\n"
        "       its data.* keys are those of `rlvr train --help`"
    )
    keys = [*flat_fields(VerifyRunConfig), *verifier_options()]
    rows = [f"  {key:<28} {meaning}{_default(default)}" for key, _, default, meaning in keys]
    return "\n".join([head, audit, "", *rows])


def _default(default: Any) -> str:
    return "" if default is MISSING else f" [{default}]"
