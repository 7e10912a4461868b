"""The benchmark of verdicts runs and writes what it prints."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench" / "verify.py"


def test_a_small_run_times_every_side(tmp_path):
    output = tmp_path / "verify.json"
    command = [sys.executable, str(SCRIPT), "--rounds", "1", "--scale", "0.01", "--workers", "1", "--json", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = {row["what"]: row["per_second"] for row in json.loads(output.read_text())["rows"]}
    assert all(rate > 0 for rate in rows.values())
    assert {"program: plain subprocess, no isolation", "verdict: three asserts, level auto"} <= rows.keys()
    assert {"answer: math verifier", "answer: math-verify alone"} <= rows.keys()
    assert any(name.startswith("program: sandbox, ") for name in rows)
    for name in rows:
        assert name in done.stdout
