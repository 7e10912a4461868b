"""Single-turn environments of Prime Intellect's `verifiers` package: their rubrics judge the completion.

The reference is an input of the environment's rollouts, as `data.path=prime_intellect:ENVIRONMENT` gives it. The reward
is the rubric's weighted sum; what each of its functions returned is a part of that name, unweighted. An optional extra:
pip install 'rlvr[prime-intellect]'.

Environments are trusted code and run in the verifiers' worker processes. One with several turns, tools or rewards over
whole groups is refused when the options are used, before any model is loaded. A function that raises or returns no
finite number is an `error`, one that hangs a `timeout`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from rlvr.errors import ConfigError
from rlvr.records import Verdict
from rlvr.verifiers.base import Case, Verifier
from rlvr.verifiers.environments.rows import environment_rows
from rlvr.verifiers.environments.single_turn import SingleTurn


@dataclass(frozen=True)
class PrimeIntellect(Verifier):
    """What the environment's rubric gives."""

    is_outcome: ClassVar[bool] = True

    environment: str
    """The installed environment's name, with arguments as `NAME?key=value&key=value`; the data's must be the same."""
    correct_from: float = 1.0
    """Reward from which a completion counts as right in pass rates."""

    def __call__(self, case: Case) -> Verdict:
        if not isinstance(case.reference, Mapping) or "prompt" not in case.reference:
            return Verdict(0.0, "unparseable_gold", detail="the reference is no input of an environment")
        score = _loaded(self.environment).score(case.reference, case.response, case.finish_reason == "length")
        if score.fault or not all(map(math.isfinite, (score.reward, *score.parts.values()))):
            return Verdict(0.0, "error", detail=score.fault or f"no finite reward: {score.parts}")
        return Verdict(score.reward, "correct" if score.reward >= self.correct_from else "wrong", score.parts)

    def prepare(self) -> None:
        """Loads the environment.

        Raises:
            ValueError: it cannot be used.
        """
        _loaded(self.environment)

    def check_machine(self) -> None:
        """Loads the environment in a process of its own.

        Raises:
            ConfigError: it is not installed, does not load, or is no single-turn environment.
        """
        try:
            environment_rows(self.environment, None)
        except ValueError as error:
            raise ConfigError("verifier.prime_intellect.environment", self.environment, str(error)) from error


@lru_cache(maxsize=1)
def _loaded(environment: str) -> SingleTurn:
    return SingleTurn(environment)
