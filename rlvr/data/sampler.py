"""The order in which prompts are visited: a seeded permutation an epoch, resumable at any point."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlvr.errors import CheckpointError
from rlvr.records import Prompt

_MENDS = {
    "prompts": "resume with the data, the filters and the chat template the run was started with",
    "seed": "resume with the run's own seed",
    "shuffle": "resume with the run's own data.shuffle",
}


class PromptSampler:
    """Visits every prompt once an epoch, without end.

    A batch that crosses into the next epoch postpones what it already holds; the next batch begins with that.

    Args:
        prompts: at least one.
        seed: with the epoch's number it decides the permutation, so no random state has to be saved.
        shuffle: False visits the prompts as they stand.
    """

    def __init__(self, prompts: Sequence[Prompt], seed: int, shuffle: bool = True) -> None:
        self._prompts = prompts
        self._seed = seed
        self._shuffle = shuffle
        self._fingerprint = _fingerprint(prompts)
        self._postponed: list[int] = []
        self._start_epoch(0)

    def next(self, n: int) -> list[Prompt]:
        """The next `n` prompts; none comes twice unless `n` exceeds the number of prompts."""
        batch: list[int] = []
        held: set[int] = set()
        again: list[int] = []
        while len(batch) < n:
            if len(held) == len(self._prompts):
                held.clear()
                self._postponed, again = again + self._postponed, []
            index = self._advance()
            if index in held:
                again.append(index)
            else:
                held.add(index)
                batch.append(index)
        self._postponed = again + self._postponed
        return [self._prompts[index] for index in batch]

    def state_dict(self) -> dict[str, Any]:
        """Numbers and strings only: fit for JSON."""
        return {
            "epoch": self._epoch,
            "position": self._position,
            "postponed": list(self._postponed),
            "seed": self._seed,
            "shuffle": self._shuffle,
            "prompts": self._fingerprint,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken.

        Raises:
            CheckpointError: when it was taken with other prompts, another seed or another `shuffle`.
        """
        own = self.state_dict()
        for key, mend in _MENDS.items():
            if state[key] != own[key]:
                raise CheckpointError(f"data order: {key} is {state[key]} in the checkpoint, {own[key]} here; {mend}")
        self._start_epoch(state["epoch"])
        self._position = int(state["position"])
        self._postponed = list(state["postponed"])

    def _start_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._position = 0
        self._order: list[int] = list(range(len(self._prompts)))
        if self._shuffle:
            np.random.default_rng([self._seed, epoch]).shuffle(self._order)

    def _advance(self) -> int:
        if self._postponed:
            return self._postponed.pop(0)
        if self._position == len(self._order):
            self._start_epoch(self._epoch + 1)
        self._position += 1
        return self._order[self._position - 1]


def _fingerprint(prompts: Sequence[Prompt]) -> str:
    """One hash of all ids in their order, with their number in front for the reader of an error."""
    digest = hashlib.blake2b(digest_size=8)
    for prompt in prompts:
        digest.update(prompt.id.encode() + b"\n")
    return f"{len(prompts)} prompts, {digest.hexdigest()}"
