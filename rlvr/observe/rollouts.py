"""Every rollout of a step as one parquet file, written to be read by people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlvr.errors import DataError
from rlvr.records import Group, Rollout

PART_PREFIX = "reward/"  # of the columns that hold a reward's parts


def rollouts_file(run: Path, step: int) -> Path:
    return run / "rollouts" / f"step-{step:06d}.parquet"


def write_rollouts(run: Path, step: int, groups: Sequence[Group]) -> Path:
    """Writes one row for each rollout, in the order of the groups; the file is whole or absent.

    Columns: group and sample (numbers within the step), prompt_id, source, question, prompt (as the model read it),
    response, reference (as JSON), reward, `reward/<part>` for each part, status, extracted, detail, finish_reason,
    num_tokens, mean_logprob (over the sampled tokens), policy_version.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = sorted({name for group in groups for rollout in group.rollouts for name in rollout.verdict.parts})
    rows = [
        _row(group, rollout, parts) | {"group": number, "sample": sample}
        for number, group in enumerate(groups)
        for sample, rollout in enumerate(group.rollouts)
    ]
    table = pa.Table.from_pylist(rows, schema=_schema(parts))
    file = rollouts_file(run, step)
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(file.name + ".tmp")
    pq.write_table(table, unfinished, compression="zstd")
    unfinished.replace(file)
    return file


def read_rollouts(run: Path, step: int) -> list[dict[str, Any]]:
    """The rows of a step as `write_rollouts` wrote them.

    Raises:
        DataError: the run kept no rollouts of that step.
    """
    import pyarrow.parquet as pq

    file = rollouts_file(run, step)
    if not file.exists():
        steps = recorded_steps(run)
        known = f"there are those of steps {steps[0]} to {steps[-1]}" if steps else "it kept none (log.rollouts=false?)"
        raise DataError(f"{run}: no rollouts of step {step}; {known}")
    rows: list[dict[str, Any]] = pq.read_table(file).to_pylist()
    return rows


def recorded_steps(run: Path) -> list[int]:
    """Steps whose rollouts the run kept, ascending."""
    return sorted(int(file.stem.removeprefix("step-")) for file in (run / "rollouts").glob("step-*.parquet"))


def forget_rollouts(run: Path, last_step: int) -> None:
    """Removes those of later steps, which a run that goes on from `last_step` takes anew."""
    for step in recorded_steps(run):
        if step > last_step:
            rollouts_file(run, step).unlink()


def _schema(parts: Sequence[str]) -> Any:
    import pyarrow as pa

    text, number, count = pa.string(), pa.float64(), pa.int64()
    columns = {
        "group": count,
        "sample": count,
        "prompt_id": text,
        "source": text,
        "question": text,
        "prompt": text,
        "response": text,
        "reference": text,
        "reward": number,
        **{PART_PREFIX + name: number for name in parts},
        "status": text,
        "extracted": text,
        "detail": text,
        "finish_reason": text,
        "num_tokens": count,
        "mean_logprob": number,
        "policy_version": count,
    }
    return pa.schema(list(columns.items()))


def _row(group: Group, rollout: Rollout, parts: Sequence[str]) -> dict[str, Any]:
    prompt, completion, verdict = group.prompt, rollout.completion, rollout.verdict
    logprobs = completion.logprobs
    return {
        "prompt_id": prompt.id,
        "source": prompt.source,
        "question": _storable(prompt.question),
        "prompt": _storable(prompt.text),
        "response": _storable(completion.text),
        "reference": _storable(json.dumps(prompt.reference, ensure_ascii=False, default=str)),
        "reward": verdict.reward,
        **{PART_PREFIX + name: verdict.parts.get(name) for name in parts},
        "status": verdict.status,
        "extracted": None if verdict.extracted is None else _storable(verdict.extracted),
        "detail": _storable(verdict.detail),
        "finish_reason": completion.finish_reason,
        "num_tokens": len(completion.token_ids),
        "mean_logprob": sum(logprobs) / len(logprobs) if logprobs else None,
        "policy_version": completion.policy_version,
    }


def _storable(text: str) -> str:
    """Lone surrogates, which UTF-8 cannot hold, become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")
