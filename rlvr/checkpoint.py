"""Whole checkpoints only: written beside, flushed to disk, then renamed; each file's checksum in a manifest.

A checkpoint is a folder `step-000050`; a name that ends in `.tmp` is one that never became whole.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlvr.errors import CheckpointError

MANIFEST = "manifest.json"
STATE = "state.json"
ALMOST_FULL = 64 * 2**20  # bytes left below which a writer that failed is taken to have filled the disk


def save(folder: Path, step: int, write: Callable[[Path], None], state: Mapping[str, Any], keep: int) -> Path:
    """Writes `folder/step-NNNNNN` and then deletes all but the newest `keep`.

    Args:
        folder: the run's checkpoints; made if missing.
        step: steps done; a checkpoint of the same step is replaced.
        write: puts tensors and other files into the empty folder it is given.
        state: what is not tensors, as JSON.
        keep: number of checkpoints kept.

    Raises:
        CheckpointError: it cannot be written (full disk, no permission); earlier checkpoints are as they were.
    """
    target = folder / f"step-{step:06d}"
    unfinished = target.with_suffix(".tmp")
    try:
        remove_leftovers(folder)
        unfinished.mkdir(parents=True)
        write(unfinished)
        (unfinished / STATE).write_text(json.dumps(dict(state)), encoding="utf-8")
        _seal(unfinished)
        if target.exists():
            shutil.rmtree(target)
        unfinished.rename(target)
        _flush(folder)
    except BaseException as error:
        full = folder.exists() and shutil.disk_usage(folder).free < ALMOST_FULL
        shutil.rmtree(unfinished, ignore_errors=True)
        # Writers in other languages report a full disk as errors of their own.
        if isinstance(error, OSError) or (full and isinstance(error, Exception)):
            raise CheckpointError(_why(target, error, full)) from error
        raise
    for old in _whole(folder)[:-keep]:
        shutil.rmtree(old)
    return target


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint, or None."""
    whole = _whole(folder)
    return whole[-1] if whole else None


def verify(checkpoint: Path) -> dict[str, Any]:
    """Reads every file of a checkpoint against its checksum and returns its state.

    Raises:
        CheckpointError: names the file that is damaged or missing.
    """
    mend = f"delete {checkpoint} to go on from the checkpoint before it"
    try:
        checksums: dict[str, str] = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{checkpoint / MANIFEST} is missing or damaged: {mend}") from error
    for name, checksum in checksums.items():
        path = checkpoint / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing: {mend}")
        if _checksum(path) != checksum:
            raise CheckpointError(f"{path} is damaged, its checksum differs from the manifest's: {mend}")
    state: dict[str, Any] = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    return state


def remove_leftovers(folder: Path) -> None:
    """Deletes what an interrupted `save` left."""
    for path in folder.glob("step-*.tmp"):
        shutil.rmtree(path)


def check_identity(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Refuses to go on from another recipe's run.

    Args:
        saved: nested options as recorded in the checkpoint's state.
        current: the same options of the run that wants to go on.

    Raises:
        CheckpointError: names the keys that differ, with both values.
    """
    ours, theirs = dict(_leaves(current)), dict(_leaves(saved))
    differing = [
        f"{key}: {theirs.get(key)!r} there, {ours.get(key)!r} here"
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
    ]
    if differing:
        raise CheckpointError(
            "the checkpoint is of another run; " + "; ".join(differing) + ". Give the same values or another name="
        )


def _whole(folder: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    steps = {int(path.name[5:]): path for path in folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name)}
    return [steps[step] for step in sorted(steps)]


def _seal(checkpoint: Path) -> None:
    """Writes the manifest and forces all files and folders to the disk."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    checksums = {path.relative_to(checkpoint).as_posix(): _checksum(path) for path in files}
    (checkpoint / MANIFEST).write_text(json.dumps(checksums, indent=1), encoding="utf-8")
    for path in (*files, checkpoint / MANIFEST, *(p for p in checkpoint.rglob("*") if p.is_dir()), checkpoint):
        _flush(path)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _why(target: Path, error: BaseException, full: bool) -> str:
    if full or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
        return f"checkpoint {target} was not written, the disk is full: free space, or lower checkpoint.keep"
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return f"checkpoint {target} was not written: {reason}. Choose another folder with output="


def _leaves(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in options.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
