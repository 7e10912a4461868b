"""Rows of a data set as plain dictionaries: from the hub, from parquet and JSON-lines files, or generated."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rlvr.data import arithmetic
from rlvr.data.prime_intellect_rows import prime_intellect_rows
from rlvr.data.reasoning_gym_rows import reasoning_gym_rows
from rlvr.errors import DataError

SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz")
# Each takes the split's name.
PROCEDURAL: dict[str, Callable[[str], list[dict[str, Any]]]] = {
    "arithmetic": arithmetic.arithmetic,
    "addition_1digit": arithmetic.addition_1digit,
}
_GENERATED = ("procedural:", "reasoning_gym:", "prime_intellect:")
_FROM_PACKAGES = {"reasoning_gym": reasoning_gym_rows, "prime_intellect": prime_intellect_rows}
_BATCH_ROWS = 8192


class Row(NamedTuple):
    """One row and where it stands, so that a broken one can be named."""

    file: str
    number: int
    """Counted from 1; in a JSON-lines file the number of its line."""
    values: dict[str, Any] | None
    """None: the line is not a JSON object."""


def read_rows(path: str, name: str | None = None, split: str = "train") -> Iterator[Row]:
    """Reads a data set row by row.

    Args:
        path: `procedural:NAME`, `reasoning_gym:NAME`, `prime_intellect:NAME`, a file, a folder (its files whose names
            begin with `split`), or a hub id.
        name: configuration of a hub data set.
        split: split of a hub data set, a generated one or a folder.

    Raises:
        DataError: at the first row asked for, when there is no such data or it cannot be read.
    """
    if path.startswith(_GENERATED):
        return _generated(path, split)
    if is_local(path):
        return (row for file in _files(path, split) for row in _READERS[_suffix(file)](file))
    return _from_hub(path, name, split)


def source_name(path: str, name: str | None = None, split: str = "train") -> str:
    """A short name of the data, the same from whichever folder it is read."""
    if is_local(path):
        local = Path(path).expanduser().resolve()
        return f"{local.parent.name}/{local.name}" if local.is_file() else f"{local.name}/{split}"
    return "/".join([path, *([name] if name else []), split])


def is_local(path: str) -> bool:
    """Whether `path` means this machine: what exists here, or can only have been meant as a file."""
    if path.startswith(_GENERATED):
        return False
    return Path(path).expanduser().exists() or path[:1] in "./~" or path.endswith(SUFFIXES) or path.count("/") > 1


def _generated(path: str, split: str) -> Iterator[Row]:
    generator, _, name = path.partition(":")
    if generator == "procedural" and name not in PROCEDURAL:
        raise DataError(f"data.path={path}: no such generator; known: {', '.join(PROCEDURAL)}")
    rows = PROCEDURAL[name](split) if generator == "procedural" else _FROM_PACKAGES[generator](name, split)
    for number, values in enumerate(rows, 1):
        yield Row(path, number, values)


def _files(path: str, split: str) -> list[Path]:
    place = Path(path).expanduser()
    if not place.exists():
        raise DataError(f"data.path={path}: there is no such file or folder (looked for {place.resolve()})")
    if place.is_file():
        _suffix(place)
        return [place]
    files = sorted(file for file in place.rglob("*") if file.name.endswith(SUFFIXES))
    chosen = [file for file in files if file.name.startswith(split)]
    if not chosen:
        found = ", ".join(file.name for file in files[:8]) or f"no {' / '.join(SUFFIXES)} file at all"
        raise DataError(
            f"data.path={path}: no file in this folder begins with the split {split!r}; there is {found}; "
            "name one file, or set the split to how the files' names begin"
        )
    return chosen


def _suffix(file: Path) -> str:
    for suffix in SUFFIXES:
        if file.name.endswith(suffix):
            return suffix
    raise DataError(f"data.path={file}: only {', '.join(SUFFIXES)} files are read")


def _from_parquet(file: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        number = 0
        for batch in pq.ParquetFile(file).iter_batches(_BATCH_ROWS):
            for values in batch.to_pylist():
                number += 1
                yield Row(str(file), number, values)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file}: not a readable parquet file ({_first_line(error)})") from error


def _from_json_lines(file: Path) -> Iterator[Row]:
    open_file = gzip.open if file.name.endswith(".gz") else open
    try:
        with open_file(file, "rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield Row(str(file), number, _json_object(line))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file}: cannot be read ({_first_line(error)})") from error


def _json_object(line: bytes) -> dict[str, Any] | None:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".parquet": _from_parquet,
    ".jsonl": _from_json_lines,
    ".jsonl.gz": _from_json_lines,
}


def _from_hub(path: str, name: str | None, split: str) -> Iterator[Row]:
    import datasets

    try:
        table = datasets.load_dataset(path, name, split=split)
    except ConnectionError as error:
        raise DataError(
            f"data.path={path}: the hub cannot be reached and there is no such file here; "
            f"use data.path=LOCAL with a {' / '.join(SUFFIXES)} file ({_first_line(error)})"
        ) from error
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise DataError(
            f"data.path={path} data.name={name} data.split={split}: the hub's data set does not load "
            f"({_first_line(error)}); mend these keys, or use data.path=LOCAL"
        ) from error
    number = 0
    for batch in table.with_format("arrow").iter(_BATCH_ROWS):
        for values in batch.to_pylist():
            number += 1
            yield Row(path, number, values)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
