# ruff: noqa: E501 - programs read best on one line
"""Every reference solution of the stored data passes and its emptied shell does not, but for the rows named here.

A deterministic third of the rows in an ordinary run; all of them with RLVR_ALL_ROWS=1 (a few minutes).
"""

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rlvr.verifiers.base import Case
from rlvr.verifiers.code import Code
from rlvr.verifiers.sandbox.runners import close_all

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
ALL_ROWS = os.environ.get("RLVR_ALL_ROWS") == "1"

# file, rows in an ordinary run: one of so many
FILES = {
    "humaneval/test.parquet": 1,
    "humanevalplus/test.parquet": 8,
    "mbpp/prompt.parquet": 1,
    "mbpp/train.parquet": 1,
    "mbpp/validation.parquet": 1,
    "mbpp/test_first_half.parquet": 3,
    "mbpp_sanitized/no_held_out.parquet": 3,
    "mbppplus/no_held_out.parquet": 6,
}

# file, task: what is wrong with the row. Everything else must pass.
DEFECTS = {
    ("humanevalplus/test.parquet", "HumanEval/32"): "its test calls the checker with the arguments spread wrongly",
    ("mbppplus/no_held_out.parquet", 255): "one answer holds millions of tuples, more than a message carries",
}
# Right, but longer than CI should wait: tens of seconds.
SLOW = {
    ("mbppplus/no_held_out.parquet", 599),
    ("humanevalplus/test.parquet", "HumanEval/15"),
    ("humanevalplus/test.parquet", "HumanEval/130"),
    ("humanevalplus/test.parquet", "HumanEval/139"),
}
# The tests compare truth values only, so that None passes for False.
WEAK = {("mbppplus/no_held_out.parquet", task) for task in (737, 787, 794)}


@pytest.fixture(scope="module")
def verify():
    yield Code(test_seconds=60.0, case_seconds=120.0)
    close_all()


@pytest.mark.parametrize("file", FILES)
def test_references_pass_and_their_shells_do_not(verify, file):
    refused, accepted = {}, {}
    rows = pq.read_table(SHARED / file).to_pylist()
    for row in rows if ALL_ROWS else rows[:: FILES[file]]:
        key = (file, row["task_id"])
        if key in SLOW and not ALL_ROWS:
            continue
        verdict = verify(Case(verify.right_answer(row), row))
        if not verdict.is_correct:
            refused[key] = verdict.detail
        verdict = verify(Case(verify.wrong_answer(row), row))
        if verdict.status != "wrong":
            accepted[key] = verdict.status
    assert {key: detail for key, detail in refused.items() if key not in DEFECTS} == {}
    assert {key: status for key, status in accepted.items() if key not in WEAK} == {}


@pytest.mark.parametrize("task", [601, 927])
def test_objects_of_the_program_are_handed_back_to_it(verify, task):
    (row,) = [row for row in pq.read_table(SHARED / "mbpp/train.parquet").to_pylist() if row["task_id"] == task]
    assert verify(Case(verify.right_answer(row), row)).is_correct


def test_contests_are_read_as_they_are(verify):
    import gzip
    import json

    with gzip.open(SHARED / "code_contests" / "sample.jsonl.gz", "rt") as lines:
        rows = {row["name"]: row for row in map(json.loads, lines)}
    tees = (
        "from collections import Counter\nn = int(input())\na = Counter(input() for _ in range(n))\n"
        "b = Counter(input() for _ in range(n))\nprint(sum((a - b).values()))"
    )
    row = rows["1000_A. Codehorses T-shirts"]
    assert verify(Case(f"```python\n{tees}\n```", row)).is_correct
    verdict = verify(Case("```python\nprint(1)\n```", row))
    assert verdict.status == "wrong"
    assert verdict.detail.startswith("test ")
    with gzip.open(SHARED / "livecodebench" / "sample.jsonl.gz", "rt") as lines:
        swap, seniors, winner = map(json.loads, lines)
    for row, program, wrong in (
        (
            swap,
            "for _ in range(int(input())):\n    s = input()\n    print('YES' if sum(a != b for a, b in zip(s, 'abc')) < 3 else 'NO')",
            "for _ in range(int(input())): print('YES')",
        ),
        (
            seniors,
            "class Solution:\n    def countSeniors(self, details: List[str]) -> int:\n"
            "        return sum(int(d[11:13]) > 60 for d in details)",
            "class Solution:\n    def countSeniors(self, details): return 2",
        ),
        (
            winner,
            "n = int(input()); s = input(); t = s.count('T')\nprint('T' if 2 * t > n or (2 * t == n and s[-1] == 'A') else 'A')",
            "print('T')",
        ),
    ):
        verdict = verify(Case(f"```python\n{program}\n```", row))
        assert verdict.is_correct, verdict.detail
        assert verify(Case(f"```python\n{wrong}\n```", row)).status == "wrong"
