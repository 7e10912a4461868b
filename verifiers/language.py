"""Language consistency: the share of the letters that are of the target language's script.

DeepSeek-R1 rewards the share of target-language words in the reasoning against mixed languages (arXiv 2501.12948,
section 2.3.2). Letters are counted here, so that Chinese and Japanese need no word splitter; formulas, code and tags
are left out. Languages of one script are not told apart.

>>> Language()(Case("<think>Add them up.</think> It is $x$.", None)).reward
1.0
>>> Language()(Case("Add up 相加求和起", None)).reward
0.5
>>> Language(language="zh")(Case("相加 $\\\\frac{1}{2}$", None)).reward
1.0

A response without letters gets 1. Linear in the length of the response; never a fault.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from rlvr.records import Verdict
from rlvr.verifiers.base import Case, Verifier
from rlvr.verifiers.instructions.texts import SCRIPTS, script_share

_NO_PROSE = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`|\$\$?[^$]*\$\$?|\\\[.*?(?:\\\]|\Z)|\\\(.*?(?:\\\)|\Z)|</?\w+>|\\\w+", re.DOTALL
)


@dataclass(frozen=True)
class Language(Verifier):
    """Share in [0, 1] of the letters that are of the language's script."""

    is_outcome: ClassVar[bool] = False

    language: str = "en"
    """ISO 639-1 code of the language that prompt and response are to share."""
    least: Annotated[float, Field(ge=0, le=1)] = 0.0
    """A smaller share earns nothing."""

    def __post_init__(self) -> None:
        if self.language not in SCRIPTS:
            raise ValueError(f"language={self.language!r} is not known; known: {', '.join(sorted(SCRIPTS))}")

    def __call__(self, case: Case) -> Verdict:
        share = script_share(_NO_PROSE.sub(" ", case.response), self.language)
        if share is None:
            return Verdict(1.0, "correct", detail="no letters")
        reward = share if share >= self.least else 0.0
        return Verdict(reward, "correct" if share == 1 else "wrong", detail=f"{share:.1%} {self.language} letters")
