"""A reward model: the score that a sequence-classification head gives question and response.

The model lives in one process of its own (`rlvr.verifiers.classifiers.server`), on the GPU when there is one, started
with the verifiers' workers and ended with them; what the workers send at the same time becomes one batch, so a batch
has at most `scoring.workers` texts. Question and response are rendered by the model's own chat template where it has
one. The whole response is scored, reasoning included.

A model that does not load, or dies, makes every case an `error`; a forward pass of a batch that takes longer than
`scoring.deadline_seconds` makes its cases a `timeout`.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rlvr.records import Verdict
from rlvr.verifiers.base import Case, Verifier
from rlvr.verifiers.worker import receive, send

_addresses: dict[RewardModel, str] = {}
"""Where the process of each model listens; forked workers inherit it."""


@dataclass(frozen=True)
class RewardModel(Verifier):
    """The model's score of question and response."""

    is_outcome: ClassVar[bool] = False

    path: str
    """Hugging Face folder or hub id of a model with a sequence-classification head."""
    label: Annotated[int, Field(ge=0)] = 0
    """Index of the logit that is the score."""
    activation: Literal["none", "sigmoid"] = "none"
    """`none`: the logit itself; `sigmoid`: between 0 and 1."""
    max_tokens: Annotated[int, Field(gt=0)] = 4096
    """Longer texts lose their beginning."""
    batch_size: Annotated[int, Field(gt=0)] = 32
    """Most texts in one forward pass."""
    correct_from: float = 0.0
    """Reward from which a completion counts as right where no other verifier says so."""

    def __post_init__(self) -> None:
        local = Path(self.path).expanduser()
        if (self.path[:1] in "./~" or local.exists()) and not (local / "config.json").is_file():
            raise ValueError(f"path={self.path!r}: this is no model's folder: it has no config.json")

    def __call__(self, case: Case) -> Verdict:
        try:
            self.prepare()
            answer = self._ask({"prompt": case.prompt, "response": case.response})
        except (OSError, RuntimeError) as error:
            return Verdict(0.0, "error", detail=f"{self.path}: {error}"[:500])
        if "error" in answer or not math.isfinite(answer["score"]):
            return Verdict(0.0, "error", detail=f"{self.path}: {answer.get('error', 'the score is not finite')}")
        score = float(answer["score"])
        reward = 1 / (1 + math.exp(-max(-700.0, score))) if self.activation == "sigmoid" else score
        return Verdict(reward, "correct" if reward >= self.correct_from else "wrong", detail=f"logit {score:.4g}")

    def prepare(self) -> None:
        """Starts the model's process and waits until it is loaded.

        Raises:
            RuntimeError: it does not load; its error is on stderr.
        """
        if self in _addresses:
            return
        address = f"\0rlvr-reward-model-{os.getpid()}-{secrets.token_hex(8)}"  # abstract: nothing to clean up
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(address)
            listening.listen(128)
            ready, theirs = os.pipe()
            names = ("path", "label", "max_tokens", "batch_size")
            options = {name: value for name, value in asdict(self).items() if name in names}
            numbers = [str(listening.fileno()), str(theirs)]
            subprocess.Popen(
                [sys.executable, "-m", "rlvr.verifiers.classifiers.server", *numbers, json.dumps(options)],
                pass_fds=[listening.fileno(), theirs],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
            os.close(theirs)
        with os.fdopen(ready, "rb") as pipe:
            if pipe.read() != b"ready":
                raise RuntimeError("the reward model does not load; its error is on stderr")
        _addresses[self] = address

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(_addresses[self])
            send(connection, message)
            answer = receive(connection)
        if answer is None:
            raise RuntimeError("the reward model's process died")
        return answer
