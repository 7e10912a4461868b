"""What every verifier is: a callable from a case to a verdict."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

from pydantic import Field

from rlvr.records import FinishReason, Verdict
from rlvr.validation import STRICT

Weight = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True)
class Case:
    """One completion to judge."""

    response: str
    """The completion's text, without special tokens."""
    reference: Any
    """Reference answer, tests or constraints; its form is the verifier's own."""
    prompt: str = ""
    """The problem as the data set states it."""
    finish_reason: FinishReason = "stop"
    num_tokens: int = 0
    """Generated tokens, the end-of-sequence token included."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Other columns of the data row."""


@dataclass(frozen=True, kw_only=True)
class Verifier(ABC):
    """Judges one case. Stateless across cases except for caches; may be slow or hang: callers run it under a deadline.

    `verifiers/NAME.py` holds the class `Name`: a frozen dataclass whose fields are its options, besides those here.
    """

    __pydantic_config__ = STRICT

    is_outcome: ClassVar[bool]
    """Whether it says if the response is right; the others only shape the reward."""

    time_option: ClassVar[str | None] = None
    """Name of the option that bounds the time of a case, in seconds, if there is one; its end must come before the
    caller's deadline, which is no verdict on the response."""

    rewards_steps: ClassVar[bool] = False
    """Whether its verdicts hold `step_rewards`."""

    weight: Weight = 1.0
    """What its reward is multiplied by in the sum."""
    gate: Weight | None = None
    """Least reward (before the weight) for what the other verifiers give above 0 to count; unset: no gate."""
    cap: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Most that its weighted reward adds to the sum or takes from it; unset: no limit."""

    @abstractmethod
    def __call__(self, case: Case) -> Verdict:
        """The verdict with the unweighted reward."""

    def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Imports what calls will need, so that no case pays for it."""

    def check_machine(self) -> None:  # noqa: B027 - most need nothing
        """Whether this machine has what calls will need; called before anything heavy is loaded.

        Raises:
            ConfigError: it has not; the message names the mend.
        """


@runtime_checkable
class OutcomeVerifier(Protocol):
    """A verifier that can write its own test: a response it must accept and one it must reject."""

    def right_answer(self, reference: Any) -> str:
        """Empty where the reference does not tell."""
        ...

    def wrong_answer(self, reference: Any) -> str: ...


_announce: ContextVar[Callable[[float, Verdict], None] | None] = ContextVar("_announce", default=None)


def if_late(seconds: float, verdict: Verdict) -> None:
    """Says which verdict stands if this call has not returned within `seconds` from now, or dies before.

    For work that hangs because of what the model wrote: the response is then wrong, not the verifier at fault. Only
    a worker process listens; anywhere else this does nothing.
    """
    announce = _announce.get()
    if announce is not None:
        announce(seconds, verdict)


@contextmanager
def listening(announce: Callable[[float, Verdict], None]) -> Iterator[None]:
    """Within it, `if_late` calls `announce`."""
    token = _announce.set(announce)
    try:
        yield
    finally:
        _announce.reset(token)


@contextmanager
def amending(amend: Callable[[Verdict], Verdict]) -> Iterator[None]:
    """Within it, whoever listens outside hears amended verdicts."""
    outer = _announce.get()
    if outer is None:
        yield
        return
    with listening(lambda seconds, verdict: outer(seconds, amend(verdict))):
        yield
