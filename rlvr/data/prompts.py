"""From rows to prompts: mapped, merged, checked, rendered and tokenised once, with every dropped row accounted for."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rlvr.config import DataConfig
from rlvr.data.mapping import BrokenRowError, Problem, RowMapping
from rlvr.data.sources import Row, read_rows, source_name
from rlvr.data.templates import ChatTemplate
from rlvr.errors import DataError
from rlvr.records import Prompt

_SAMPLE_ROWS = 1000
_NAMED_ROWS = 5


@dataclass
class Report:
    """What became of the rows of a data set."""

    source: str
    max_prompt_tokens: int
    num_rows: int = 0
    num_broken: int = 0
    """Rows without question or answer, or with the wrong type there."""
    named_broken: list[str] = field(default_factory=list)
    """The first of them: file, row number, column, reason."""
    num_repeated: int = 0
    """Rows merged into an equal one before them."""
    num_conflicting: int = 0
    """Distinct prompts dropped for having two different answers."""
    num_too_long: int = 0
    num_over_limit: int = 0
    """Distinct prompts left unused behind `data.limit`."""
    num_prompts: int = 0
    mean_tokens: float = 0.0
    longest_tokens: int = 0

    def summary(self) -> str:
        """One line for the head of a run."""
        kept = f"{self.source}: {self.num_rows} rows -> {self.num_prompts} prompts"
        tokens = f"; {self.mean_tokens:.0f} tokens a prompt, at most {self.longest_tokens}"
        return kept + (f" ({self._losses()})" if self._losses() else "") + (tokens if self.num_prompts else "")

    def warnings(self) -> list[str]:
        """One line for each kind of loss that the user should know of; merged repeats and the limit are none."""
        lines: list[str] = []
        if self.num_broken:
            more = self.num_broken - len(self.named_broken)
            named = "; ".join(self.named_broken) + (f"; and {more} more" if more else "")
            lines.append(
                f"{self.source}: {self.num_broken} of {self.num_rows} rows are broken and were dropped: {named}"
            )
        if self.num_conflicting:
            lines.append(f"{self.source}: {self.num_conflicting} prompts with two different answers were dropped")
        if self.num_too_long:
            lines.append(
                f"{self.source}: {self.num_too_long} prompts longer than data.max_prompt_tokens="
                f"{self.max_prompt_tokens} were dropped"
            )
        return lines

    def _losses(self) -> str:
        counts = (
            (self.num_broken, "broken"),
            (self.num_repeated, "repeated"),
            (self.num_conflicting, "prompts with two answers"),
            (self.num_too_long, f"prompts over {self.max_prompt_tokens} tokens"),
            (self.num_over_limit, "beyond the limit"),
        )
        return ", ".join(f"{count} {what}" for count, what in counts if count)


def load_prompts(data: DataConfig, template: ChatTemplate) -> tuple[list[Prompt], Report]:
    """Loads a data set as prompts, in the order of its rows.

    Rows that state the same problem are merged; where they disagree on the answer, the prompt is dropped.

    Raises:
        DataError: no such data, a missing column, or no prompt left.
        ConfigError: keys of `data` that contradict each other.
        ModelError: the chat template refuses the turns.
    """
    source = source_name(data.path, data.name, data.split)
    report = Report(source, data.max_prompt_tokens)
    rows = read_rows(data.path, data.name, data.split)
    sample = list(itertools.islice(rows, _SAMPLE_ROWS))
    if not sample:
        raise DataError(f"{source}: the data is empty: no row at all (data.path={data.path})")
    readable = [row.values for row in sample if row.values is not None]
    if not readable:
        raise DataError(f"{source}: none of the first {len(sample)} lines is a JSON object (data.path={data.path})")
    mapping = RowMapping(data, readable)
    candidates = _distinct(itertools.chain(sample, rows), mapping, report)
    prompts = list(_tokenised(candidates, template, data.limit, report))
    report.num_prompts = len(prompts)
    if not prompts:
        raise DataError(f"no prompt is left of {report.summary()}" + "".join(f"\n  {w}" for w in report.warnings()))
    report.mean_tokens = sum(len(prompt.token_ids) for prompt in prompts) / len(prompts)
    report.longest_tokens = max(len(prompt.token_ids) for prompt in prompts)
    return prompts, report


@dataclass
class _Candidate:
    problem: Problem
    reference_key: str
    conflicting: bool = False


def _distinct(rows: Iterator[Row], mapping: RowMapping, report: Report) -> list[_Candidate]:
    """Maps all rows and merges the equal ones before anything is tokenised."""
    candidates: dict[bytes, _Candidate] = {}
    for row in rows:
        report.num_rows += 1
        try:
            problem = mapping(row.values)
        except BrokenRowError as error:
            report.num_broken += 1
            if report.num_broken <= _NAMED_ROWS:
                report.named_broken.append(f"{row.file} row {row.number}: {error}")
            continue
        key = hashlib.blake2b(_as_json(problem.messages).encode(), digest_size=16).digest()
        reference_key = _as_json(problem.reference)
        first = candidates.get(key)
        if first is None:
            candidates[key] = _Candidate(problem, reference_key)
        elif first.reference_key == reference_key:
            report.num_repeated += 1
        else:
            first.conflicting = True
    report.num_conflicting = sum(candidate.conflicting for candidate in candidates.values())
    return [candidate for candidate in candidates.values() if not candidate.conflicting]


def _tokenised(
    candidates: list[_Candidate], template: ChatTemplate, limit: int | None, report: Report
) -> Iterator[Prompt]:
    """Renders and tokenises until `limit` prompts that are short enough are found."""
    batch_size, kept = 2048, 0
    for start in range(0, len(candidates), batch_size):
        batch = candidates[start : start + batch_size]
        texts = [template.render(candidate.problem.messages) for candidate in batch]
        for i, (candidate, text, ids) in enumerate(zip(batch, texts, template.encode(texts), strict=True)):
            if kept == limit:
                report.num_over_limit = len(candidates) - start - i
                return
            if len(ids) > report.max_prompt_tokens:
                report.num_too_long += 1
                continue
            kept += 1
            yield _prompt(candidate, text, ids, report.source)


def _prompt(candidate: _Candidate, text: str, token_ids: list[int], source: str) -> Prompt:
    problem = candidate.problem
    content = f"{source}\0{_as_json(problem.messages)}\0{candidate.reference_key}"
    return Prompt(
        id=hashlib.blake2b(content.encode(), digest_size=8).hexdigest(),
        text=text,
        token_ids=token_ids,
        reference=problem.reference,
        source=source,
        question=problem.question,
        extra=problem.extra,
    )


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str, ensure_ascii=True)
