"""The process that holds a reward model: collects what the workers send into batches and answers each with its score.

Messages are those of `rlvr.verifiers.worker` (JSON with its length in front):

    worker -> here   {"prompt": ..., "response": ...}
    here -> worker   {"score": ...} or {"error": ...}

The only module of this package that imports torch; it runs as a program and is imported by nobody.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import signal
import socket
import sys
import threading
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rlvr.verifiers.worker import receive, send

_PR_SET_PDEATHSIG = 1


@dataclass
class Item:
    """One text to score."""

    prompt: str
    response: str
    done: threading.Event = field(default_factory=threading.Event)
    answer: dict[str, Any] = field(default_factory=dict)


class Classifier:
    """A sequence-classification model and its tokenizer.

    Args:
        path: Hugging Face folder or hub id.
        max_tokens: longer texts lose their beginning.
        label: index of the logit that is the score.
    """

    def __init__(self, path: str, max_tokens: int, label: int) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(path, truncation_side="left", padding_side="right")
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        model = AutoModelForSequenceClassification.from_pretrained(path, dtype="auto")
        self.model = model.to(self.device).eval()
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.model.config.pad_token_id = self.tokenizer.pad_token_id
        if not 0 <= label < self.model.config.num_labels:
            raise ValueError(f"label={label}: the model has {self.model.config.num_labels} labels")
        self.max_tokens, self.label = max_tokens, label

    @torch.inference_mode()
    def __call__(self, items: list[Item]) -> list[float]:
        """Scores of the texts."""
        texts = [self._text(item) for item in items]
        batch = self.tokenizer(
            texts,
            add_special_tokens=self.tokenizer.chat_template is None,
            truncation=True,
            max_length=self.max_tokens,
            padding=True,
            return_tensors="pt",
        )
        keys = ("input_ids", "attention_mask")
        logits = self.model(**{key: batch[key].to(self.device) for key in keys}).logits
        return [float(score) for score in logits[:, self.label].float().cpu()]

    def _text(self, item: Item) -> str:
        if self.tokenizer.chat_template is None:
            return f"{item.prompt}\n\n{item.response}"
        turns = [{"role": "user", "content": item.prompt}, {"role": "assistant", "content": item.response}]
        return str(self.tokenizer.apply_chat_template(turns, tokenize=False))


def main(argv: list[str]) -> None:
    """Args: number of the inherited listening socket, of the pipe to say `ready` on, and the options as JSON."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    listening, ready, options = socket.socket(fileno=int(argv[0])), int(argv[1]), json.loads(argv[2])
    batch_size = options.pop("batch_size")
    classifier = Classifier(**options)
    os.write(ready, b"ready")
    os.close(ready)
    items: queue.SimpleQueue[Item] = queue.SimpleQueue()
    threading.Thread(target=_accept, args=(listening, items), daemon=True).start()
    while True:
        batch = [items.get()]
        with contextlib.suppress(queue.Empty):
            while len(batch) < batch_size:
                batch.append(items.get(timeout=0.002))
        _answer(classifier, batch)


def _answer(classifier: Classifier, batch: list[Item]) -> None:
    try:
        for item, score in zip(batch, classifier(batch), strict=True):
            item.answer = {"score": score}
    # Untrusted text, or a batch too large for the memory: every text gets an answer and the next batch its chance.
    except Exception as error:
        for item in batch:
            item.answer = {"error": f"{type(error).__name__}: {error}"[:500]}
    for item in batch:
        item.done.set()


def _accept(listening: socket.socket, items: queue.SimpleQueue[Item]) -> None:
    while True:
        connection, _ = listening.accept()
        threading.Thread(target=_serve, args=(connection, items), daemon=True).start()


def _serve(connection: socket.socket, items: queue.SimpleQueue[Item]) -> None:
    with connection, contextlib.suppress(OSError):
        while (message := receive(connection)) is not None:
            item = Item(**message)
            items.put(item)
            item.done.wait()
            send(connection, item.answer)


if __name__ == "__main__":
    main(sys.argv[1:])
