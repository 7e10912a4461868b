"""The order in which prompts are visited: a seeded permutation an epoch, resumable at any point."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from rlvr.errors import CheckpointError
from rlvr.records import Prompt

log = logging.getLogger(__name__)

_MENDS = {
    "prompts": "resume with the data, the filters and the chat template the run was started with",
    "seed": "resume with the run's own seed",
    "shuffle": "resume with the run's own data.shuffle",
}


class PromptSampler:
    """Visits every prompt once an epoch, without end; retired prompts stay out of the epochs to come.

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
        self._index = {prompt.id: index for index, prompt in enumerate(prompts)}
        self._postponed: list[int] = []
        self._retired: set[int] = set()
        self._start_epoch(0)

    def next(self, n: int, besides: Collection[Prompt] = ()) -> list[Prompt]:
        """The next `n` prompts; none comes twice unless `n` exceeds the number of prompts.

        Args:
            besides: prompts that the batch holds already: none of them comes, so that there may be fewer than `n`.
        """
        if not besides and self._retired and n > len(self._prompts) - len(self._retired):
            log.warning("all but %d prompts are retired: they come back", len(self._prompts) - len(self._retired))
            self._retired.clear()
        batch: list[int] = []
        held = {self._index[prompt.id] for prompt in besides}
        again: list[int] = []
        while len(batch) < n:
            if len(held) == len(self._prompts) - len(self._retired):
                if besides:
                    break
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

    def postpone(self, prompts: Iterable[Prompt]) -> None:
        """Visits these first, in this order, whatever came of their last visit."""
        self._postponed = [self._index[prompt.id] for prompt in prompts] + self._postponed

    def retire(self, prompts: Iterable[Prompt]) -> None:
        """Leaves these out of the epochs to come, until too few are left for a batch: then all come back."""
        self._retired |= {self._index[prompt.id] for prompt in prompts}

    @property
    def num_retired(self) -> int:
        return len(self._retired)

    def state_dict(self) -> dict[str, Any]:
        """Numbers and strings only: fit for JSON."""
        return {
            "epoch": self._epoch,
            "position": self._position,
            "postponed": list(self._postponed),
            "retired": sorted(self._retired),
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
        self._retired = set(state["retired"])

    def _start_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._position = 0
        self._order: list[int] = list(range(len(self._prompts)))
        if self._shuffle:
            np.random.default_rng([self._seed, epoch]).shuffle(self._order)

    def _advance(self) -> int:
        """The next index that is not retired; there is one."""
        while True:
            if self._postponed:
                index = self._postponed.pop(0)
            else:
                if self._position == len(self._order):
                    self._start_epoch(self._epoch + 1)
                index = self._order[self._position]
                self._position += 1
            if index not in self._retired:
                return index


def _fingerprint(prompts: Sequence[Prompt]) -> str:
    """One hash of all ids in their order, with their number in front for the reader of an error."""
    digest = hashlib.blake2b(digest_size=8)
    for prompt in prompts:
        digest.update(prompt.id.encode() + b"\n")
    return f"{len(prompts)} prompts, {digest.hexdigest()}"
