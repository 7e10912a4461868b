"""Proves that the rollout engine samples from the weights the policy handed over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rlvr.errors import HandoverError
from rlvr.rollout.engine import RolloutEngine

if TYPE_CHECKING:
    import torch

FLOAT32_TOLERANCE = 1e-3
LOW_PRECISION_TOLERANCE = 0.1


def default_tolerance(*dtypes: str) -> float:
    """Largest mean absolute log-prob difference allowed between engine and policy of these dtypes."""
    return FLOAT32_TOLERANCE if set(dtypes) == {"float32"} else LOW_PRECISION_TOLERANCE


def checked(
    weights: Iterable[tuple[str, torch.Tensor]], model: torch.nn.Module, version: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """Passes `(Hugging Face name, tensor)` pairs on and refuses an incomplete or foreign hand-over.

    Args:
        weights: what the policy hands over; tied parameters may come under any of their names.
        model: a model whose parameters that require a gradient are the ones to expect (it may be on the meta device).
        version: of the weights, for the messages.

    Yields:
        The pairs, a tied parameter always under its first name.

    Raises:
        HandoverError: an unknown name or a wrong shape at once; at the end, the parameters that never came.
    """
    parameters = {name: p for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
    first_names = {id(parameter): name for name, parameter in reversed(parameters.items())}
    missing = set(first_names.values())
    for name, tensor in weights:
        if name not in parameters:
            raise HandoverError(f"weights of version {version}: the engine's model has no parameter {name!r}")
        parameter = parameters[name]
        if parameter.shape != tensor.shape:
            shapes = f"{list(tensor.shape)}, the engine's has {list(parameter.shape)}"
            raise HandoverError(f"weights of version {version}: {name!r} has shape {shapes}")
        first_name = first_names[id(parameter)]
        missing.discard(first_name)
        yield first_name, tensor
    if missing:
        first = ", ".join(sorted(missing)[:3])
        raise HandoverError(
            f"weights of version {version} are incomplete: {len(missing)} of {len(first_names)} parameters "
            f"never came, among them {first}; the engine must not sample from them"
        )


def refuse_half_loaded(whole: bool) -> None:
    """Raises HandoverError unless the last hand-over ended."""
    if not whole:
        raise HandoverError("the engine's last hand-over did not end: call load_weights with all weights first")


class Policy(Protocol):
    """What the probe asks of the policy."""

    version: int

    def sequence_logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-prob at temperature 1 of each token given those before it; `len(sequence) - 1` values a sequence."""
        ...


@dataclass(frozen=True)
class Probe:
    """A few fixed token sequences whose log-probs the engine and the policy must agree on after every hand-over."""

    sequences: list[list[int]]
    """Token ids, from real prompts; each of two tokens or more."""
    tolerance: float
    """Largest mean absolute difference of the log-probs."""

    def check(self, engine: RolloutEngine, policy: Policy) -> dict[str, float]:
        """Compares both sides' log-probs of the sequences at temperature 1.

        Returns:
            The mean absolute difference, as the metric `mismatch/handover`.

        Raises:
            HandoverError: above the tolerance (or not a number); names the worst token.
        """
        engine_logprobs = engine.logprobs(self.sequences)
        policy_logprobs = policy.sequence_logprobs(self.sequences)
        pairs = [
            (abs(ours - theirs), index, position, ours, theirs)
            for index, (row, policy_row) in enumerate(zip(engine_logprobs, policy_logprobs, strict=True))
            for position, (ours, theirs) in enumerate(zip(row, policy_row, strict=True))
        ]
        mean = sum(difference for difference, *_ in pairs) / len(pairs)
        if mean <= self.tolerance:
            return {"mismatch/handover": mean}
        # NaN compares false with everything: a key that puts it first.
        worst, index, position, ours, theirs = max(pairs, key=lambda pair: (pair[0] != pair[0], pair[0]))
        raise HandoverError(
            f"after the hand-over of version {policy.version} the engine's log-probs differ from the policy's by "
            f"{mean:.3g} in the mean (tolerance {self.tolerance:g}); the worst is {worst:.3g} at token {position + 1} "
            f"of probe sequence {index} (engine {ours:.4f}, policy {theirs:.4f}). "
            "The engine holds stale, half-loaded or wrongly converted weights: check the parameter names, tied weights "
            "and dtypes of the hand-over; if both sides are right and only rounding differs, raise "
            "rollout.handover_tolerance"
        )
