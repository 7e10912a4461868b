"""Instructions that can be checked by counting, in IFEval's manner: lengths, keywords, layout, case, language.

The reference is a list of constraint ids (`instruction_id_list`); the row's column `kwargs` holds as many mappings of
arguments. All 25 types of IFEval are there (`rlvr.verifiers.instructions.checks`).

>>> verify = Constraints()
>>> ids, kwargs = ["punctuation:no_comma", "keywords:existence"], [{}, {"keywords": ["sea"]}]
>>> verify(Case("By the sea.", ids, extra={"kwargs": kwargs})).reward
1.0
>>> verdict = verify(Case("Well, here.", ids, extra={"kwargs": kwargs}))
>>> verdict.reward, verdict.detail
(0.0, 'broken: punctuation:no_comma, keywords:existence')

Parts: `strict` and `loose` say whether every constraint holds (IFEval's prompt level), `strict_share` and `loose_share`
the share that does (its instruction level, each prompt with the same weight). Loose takes a constraint as kept when it
is in the response, or without its first line, its last line, both, or any of these without asterisks.

Linear in the length of the response. An unknown id or wrong arguments are an `unparseable_gold`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from rlvr.records import Status, Verdict
from rlvr.verifiers.answers.extract import Thinking, after_thinking
from rlvr.verifiers.base import Case, Verifier
from rlvr.verifiers.instructions.checks import CHECKS
from rlvr.verifiers.instructions.texts import is_in_language

Check = Callable[[str], bool]


@dataclass(frozen=True)
class Constraints(Verifier):
    """1 when every constraint is kept, else 0; or the share that is (Zhou et al. 2023, arXiv 2311.07911)."""

    is_outcome: ClassVar[bool] = True

    reward: Literal["all", "share"] = "all"
    """`all`: 1 when every constraint holds, else 0; `share`: the share that holds."""
    loose: bool = False
    """Reward by the loose reading, which forgives a first or last line and markdown's asterisks."""
    thinking: Thinking = "optional"
    """`required`: no `</think>`, no answer; `optional`: reasoning is cut off where there is any; `searched`: never."""

    def __call__(self, case: Case) -> Verdict:
        checks = _checks(case.reference, case.extra.get("kwargs"))
        if isinstance(checks, str):
            return Verdict(0.0, "unparseable_gold", detail=checks)
        answer = after_thinking(case.response, self.thinking)
        if answer is None or not answer.strip():
            status: Status = "truncated" if case.finish_reason == "length" else "no_answer"
            return Verdict(0.0, status, parts=_parts([False], [False]), detail="no answer outside the reasoning")
        strict = [check(answer) for check in checks.values()]
        variants = list(_variants(answer))
        loose = [kept or any(map(check, variants)) for kept, check in zip(strict, checks.values(), strict=True)]
        counted = loose if self.loose else strict
        broken = [name for name, kept in zip(checks, counted, strict=True) if not kept]
        reward = float(not broken) if self.reward == "all" else sum(counted) / len(counted)
        detail = f"broken: {', '.join(broken)}" if broken else ""
        return Verdict(reward, "wrong" if broken else "correct", parts=_parts(strict, loose), detail=detail)

    def prepare(self) -> None:
        is_in_language("loads the languages' profiles", "en")


def _checks(ids: Any, kwargs: Any) -> dict[str, Check] | str:
    """The row's checks by name, or what is wrong with the row."""
    if not isinstance(ids, list) or not ids or not isinstance(kwargs, list) or len(kwargs) != len(ids):
        return "the row needs a list of constraint ids and as many mappings in its column `kwargs`"
    checks: dict[str, Check] = {}
    for number, (name, given) in enumerate(zip(ids, kwargs, strict=True)):
        if name not in CHECKS:
            return f"there is no constraint {name!r}"
        # The hub's rows hold every argument of every type, those of other types as null.
        arguments = {key: value for key, value in (given or {}).items() if value is not None}
        try:
            inspect.signature(CHECKS[name]).bind("", **arguments)
        except TypeError as error:
            return f"{name}: {error}"
        checks[name if name not in checks else f"{name} ({number})"] = partial(CHECKS[name], **arguments)
    return checks


def _variants(response: str) -> Iterator[str]:
    """IFEval's eight loose readings but the response itself."""
    lines = response.split("\n")
    for text in (response, "\n".join(lines[1:]), "\n".join(lines[:-1]), "\n".join(lines[1:-1])):
        for variant in (text.strip(), text.replace("*", "").strip()):
            if variant:
                yield variant


def _parts(strict: list[bool], loose: list[bool]) -> dict[str, float]:
    return {
        "strict": float(all(strict)),
        "loose": float(all(loose)),
        "strict_share": sum(strict) / len(strict),
        "loose_share": sum(loose) / len(loose),
    }
