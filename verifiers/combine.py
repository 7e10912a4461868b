"""Several verifiers as one: a weighted sum of rewards with gates and caps, the parts kept apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from rlvr.records import Verdict
from rlvr.verifiers.base import Case, OutcomeVerifier, Verifier, amending


@dataclass(frozen=True)
class Combined:
    """`reward = sum of weight * part`; `parts` holds the unweighted rewards by name, and `name/part` a part's own.

    >>> from rlvr.verifiers.registry import build
    >>> verify = build({"math": {}, "format": {"weight": 0.5}})
    >>> verdict = verify(Case(r"The answer is \\boxed{4}.", "4"))
    >>> verdict.reward, verdict.status, verdict.parts
    (1.0, 'correct', {'math': 1.0, 'format': 0.0})

    A gate: below it, what the others give above 0 does not count; what they take away does.

    >>> verify = build({"math": {}, "format": {"weight": 0.5, "gate": 1.0}})
    >>> verify(Case(r"The answer is \\boxed{4}.", "4")).reward
    0.0
    >>> verify(Case(r"<think>2 + 2</think> \\boxed{4}", "4")).reward
    1.5

    A cap bounds what a part adds or takes, after its weight.

    >>> verify = build({"math": {}, "overlong": {"max_tokens": 100, "weight": 3.0, "cap": 0.5}})
    >>> verify(Case(r"\\boxed{4}", "4", num_tokens=100)).reward
    0.5

    Beside a verifier that rewards steps, what the others give stands at the end of the response, as its last step.
    Status and extracted answer are those of the outcome verifiers (the first that is not correct); neither shaping nor
    gates change them. A fault in any part makes the whole a fault: half a reward would be a wrong reward.
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
        """The first verifier that says what is right and can write its own test."""
        found = (v for v in self.verifiers.values() if v.is_outcome and isinstance(v, OutcomeVerifier))
        return next(found, None)

    def _late(self, case: Case, done: Mapping[str, Verdict], name: str, late: Verdict) -> Verdict:
        return self._join(case, {**done, name: late})

    def _join(self, case: Case, verdicts: Mapping[str, Verdict]) -> Verdict:
        ordered = {name: verdicts[name] for name in self.verifiers if name in verdicts}
        fault = next((verdict for verdict in ordered.values() if verdict.is_fault), None)
        if fault is not None:
            return Verdict(0.0, fault.status, {}, fault.extracted, detail=fault.detail)
        outcomes = [v for name, v in ordered.items() if self.verifiers[name].is_outcome] or list(ordered.values())
        deciding = next((verdict for verdict in outcomes if not verdict.is_correct), outcomes[0])
        closed = [name for name, verdict in ordered.items() if self._is_closed(name, verdict)]
        parts: dict[str, float] = {}
        for name, verdict in ordered.items():
            parts |= {name: verdict.reward, **{f"{name}/{part}": value for part, value in verdict.parts.items()}}
        return Verdict(
            reward=sum(self._counted(name, verdict.reward, closed) for name, verdict in ordered.items()),
            status=deciding.status,
            parts=parts,
            extracted=deciding.extracted,
            step_rewards=self._step_rewards(case, ordered, closed),
            detail="; ".join(
                filter(None, [deciding.detail, *(f"gate {name}: {ordered[name].detail}" for name in closed)])
            ),
        )

    def _is_closed(self, name: str, verdict: Verdict) -> bool:
        gate = self.verifiers[name].gate
        return gate is not None and verdict.reward < gate

    def _counted(self, name: str, reward: float, closed: list[str]) -> float:
        """What a reward of a part comes to in the sum."""
        verifier = self.verifiers[name]
        counted = verifier.weight * reward
        if verifier.cap is not None:
            counted = min(max(counted, -verifier.cap), verifier.cap)
        return min(counted, 0.0) if any(gate != name for gate in closed) else counted

    def _step_rewards(self, case: Case, verdicts: Mapping[str, Verdict], closed: list[str]) -> list[tuple[int, float]]:
        steps: list[tuple[int, float]] = []
        at_the_end = 0.0
        for name, verdict in verdicts.items():
            if self.verifiers[name].rewards_steps:
                steps += [(at, self._counted(name, reward, closed)) for at, reward in verdict.step_rewards]
            else:
                at_the_end += self._counted(name, verdict.reward, closed)
        if not any(verifier.rewards_steps for verifier in self.verifiers.values()):
            return []
        return [*sorted(steps), (len(case.response), at_the_end)]
