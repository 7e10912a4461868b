"""What the data tests share: the embedded tokenizer, and small files written on the spot."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from rlvr.data.templates import ChatTemplate
from rlvr.policy.tiny import write_tiny_model

Write = Callable[[str, list[dict[str, Any]]], str]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder, seed=0)
    return folder


@pytest.fixture(scope="session")
def template(tiny_folder: Path) -> ChatTemplate:
    return ChatTemplate(AutoTokenizer.from_pretrained(tiny_folder))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes rows into a file of the temporary folder, in the form its name says, and returns its path."""

    def _write(name: str, rows: list[dict[str, Any]]) -> str:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        if name.endswith(".parquet"):
            pq.write_table(pa.Table.from_pylist(rows), file)
        else:
            file.write_bytes(gzip.compress(lines) if name.endswith(".gz") else lines)
        return str(file)

    return _write
