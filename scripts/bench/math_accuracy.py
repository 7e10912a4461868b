"""Right answers accepted and wrong ones accepted: the math verifier beside math-verify as its users call it.

    .venv/bin/python scripts/bench/math_accuracy.py --json math_accuracy.json

The labelled answers are the tests' own (tests/verifiers); our rules were made with them at hand, so a fresh set would
find more misses of ours than this one. Every answer stands in a box; references are given as data sets hold them.
"""

from __future__ import annotations

import argparse
import json
import logging
import runpy
from collections.abc import Callable
from pathlib import Path

from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse
from math_verify import verify as equal

from rlvr.verifiers.base import Case
from rlvr.verifiers.math import Math

TESTS = Path(__file__).resolve().parents[2] / "tests" / "verifiers"
SETS = {"first": "math_cases.py", "styles": "answer_styles.py"}
Judge = Callable[[str, str], bool]  # (reference, response) -> accepted


def ours(reference: str, response: str) -> bool:
    return VERIFIER(Case(response, reference)).is_correct


def default(reference: str, response: str) -> bool:
    """math-verify's own defaults, the reference wrapped as it wants it."""
    return bool(equal(parse(f"${reference}$"), parse(response)))


def trl(reference: str, response: str) -> bool:
    """As TRL 1.16's `accuracy_reward`: a bare reference; one that cannot be parsed skips the row."""
    return _with(reference, response, NormalizationConfig(units=True))


def open_r1(reference: str, response: str) -> bool:
    """As open-r1's `accuracy_reward`: repair of malformed operators is off."""
    strict = NormalizationConfig(
        nits=False, malformed_operators=False, basic_latex=True, equations=True, boxed="all", units=True
    )
    return _with(reference, response, strict)


def _with(reference: str, response: str, normalization: NormalizationConfig) -> bool:
    gold = parse(reference, extraction_mode="first_match")
    extraction = LatexExtractionConfig(
        normalization_config=normalization, boxed_match_priority=0, try_extract_without_anchor=False
    )
    answer = parse(response, extraction_config=[extraction], extraction_mode="first_match")
    return bool(gold) and bool(equal(gold, answer))


VERIFIER = Math()
JUDGES: dict[str, Judge] = {
    "rlvr": ours,
    "math-verify, wrapped reference": default,
    "as TRL calls it": trl,
    "as open-r1 calls it": open_r1,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="file to write")
    args = parser.parse_args()
    logging.disable(logging.ERROR)  # math-verify reports each answer that it cannot compare
    report: dict[str, dict[str, dict[str, float]]] = {}
    print(f"{'':<32}{'set':<8}{'right accepted':>18}{'wrong accepted':>18}")
    for name, judge in JUDGES.items():
        for title, file in SETS.items():
            cases = runpy.run_path(str(TESTS / file))
            shares = {
                key: sum(judge(gold, rf"\boxed{{{answer}}}") for gold, answer in cases[key]) / len(cases[key])
                for key in ("SAME", "DIFFERENT")
            }
            report.setdefault(name, {})[title] = shares
            numbers = (f"{shares[key]:.1%} of {len(cases[key])}" for key in ("SAME", "DIFFERENT"))
            print(f"{name:<32}{title:<8}" + "".join(f"{cell:>18}" for cell in numbers), flush=True)
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
