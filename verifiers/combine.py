"""Several verifiers as one: a weighted sum of rewards, with the parts kept apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from rlvr.records import Verdict
from rlvr.verifiers.base import Case, OutcomeVerifier, Verifier, amending


@dataclass(frozen=True)
class Combined:
    """`reward = sum of weight * part`; `parts` holds the unweighted rewards by name.

    Beside a verifier that rewards steps, what the others give stands at the end of the response, as its last step.
    Status and extracted answer are those of the outcome verifiers (the first that is not correct); shaping never
    changes them. A fault in any part makes the whole a fault: half a reward would be a wrong reward.

    >>> from rlvr.verifiers.registry import build
    >>> verify = build({"math": {}, "format": {"weight": 0.5}})
    >>> verdict = verify(Case(r"The answer is \\boxed{4}.", "4"))
    >>> verdict.reward, verdict.status, verdict.parts
    (1.0, 'correct', {'math': 1.0, 'format': 0.0})
    """

    verifiers: Mapping[str, Verifier]

    def __call__(self, case: Case) -> Verdict:
        verdicts: dict[str, Verdict] = {}
        # Shaping first: it is quick, and a late outcome then still has its company.
        for name, verifier in sorted(self.verifiers.items(), key=lambda item: item[1].is_outcome):
            with amending(partial(self._late, case, dict(verdicts), name)):
                verdicts[name] = verifier(case)
        return self._join(case, verdicts)

    def prepare(self) -> None:
        for verifier in self.verifiers.values():
            verifier.prepare()

    @property
    def outcome(self) -> OutcomeVerifier | None:
        """The first verifier that says what is right."""
        return next((v for v in self.verifiers.values() if v.is_outcome), None)  # type: ignore[return-value]

    def _late(self, case: Case, done: Mapping[str, Verdict], name: str, late: Verdict) -> Verdict:
        return self._join(case, {**done, name: late})

    def _join(self, case: Case, verdicts: Mapping[str, Verdict]) -> Verdict:
        ordered = {name: verdicts[name] for name in self.verifiers if name in verdicts}
        fault = next((verdict for verdict in ordered.values() if verdict.is_fault), None)
        if fault is not None:
            return Verdict(0.0, fault.status, {}, fault.extracted, detail=fault.detail)
        outcomes = [v for name, v in ordered.items() if self.verifiers[name].is_outcome] or list(ordered.values())
        deciding = next((verdict for verdict in outcomes if not verdict.is_correct), outcomes[0])
        weights = {name: self.verifiers[name].weight for name in ordered}
        return Verdict(
            reward=sum(weights[name] * verdict.reward for name, verdict in ordered.items()),
            status=deciding.status,
            parts={name: verdict.reward for name, verdict in ordered.items()},
            extracted=deciding.extracted,
            step_rewards=self._step_rewards(case, ordered),
            detail=deciding.detail,
        )

    def _step_rewards(self, case: Case, verdicts: Mapping[str, Verdict]) -> list[tuple[int, float]]:
        steps: list[tuple[int, float]] = []
        at_the_end = 0.0
        for name, verdict in verdicts.items():
            verifier = self.verifiers[name]
            if verifier.rewards_steps:
                steps += [(at, verifier.weight * reward) for at, reward in verdict.step_rewards]
            else:
                at_the_end += verifier.weight * verdict.reward
        if not any(verifier.rewards_steps for verifier in self.verifiers.values()):
            return []
        return [*sorted(steps), (len(case.response), at_the_end)]
