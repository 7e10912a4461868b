"""Worker processes that run verifiers under deadlines: every case gets a verdict, whatever the model wrote.

No signals and no forks here: it works from any thread of a process that holds torch, CUDA and locks. One process is
started fresh (`rlvr.verifiers.worker`); it imports the verifiers once and forks the children that judge the cases.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from rlvr.records import Prompt, Status, Verdict
from rlvr.verifiers.base import Case
from rlvr.verifiers.registry import build
from rlvr.verifiers.worker import receive, send

STARTUP_SECONDS = 120.0
"""Longest wait for the first child: importing sympy takes a second, on a busy machine several."""


MAX_FAILED_STARTS = 3
"""In a row; after that every case is an `error` at once."""


class _Batch:
    """Verdicts of some submitted cases, as they come."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.submitted = 0
        self.finished = 0
        self.verdicts: dict[Hashable, Verdict] = {}
        self.seconds: dict[Hashable, float] = {}

    def expect(self) -> None:
        with self.changed:
            self.submitted += 1

    def put(self, key: Hashable, verdict: Verdict, seconds: float) -> None:
        with self.changed:
            self.verdicts[key] = verdict
            self.seconds[key] = seconds
            self.finished += 1
            self.changed.notify_all()

    def wait(self, advance: Callable[[int], object]) -> None:
        told = 0
        while told < self.submitted:
            with self.changed:
                while self.finished == told:
                    self.changed.wait()
                new, told = self.finished - told, self.finished
            advance(new)


@dataclass(frozen=True)
class _Job:
    key: Hashable
    case: Case
    batch: _Batch


class Scorer:
    """Runs the combined verifiers over cases.

    `submit` while completions still arrive, then `collect`; or `score` for all at once. Both from any thread.

    Args:
        verifier_options: verifier name -> its options (`rlvr.verifiers.registry.build`).
        num_workers: processes that judge at the same time.
        deadline_seconds: wall time of one case from the start of its work; then its process is killed and replaced,
            and the verdict is `timeout`, or what the verifier said would stand.

    Raises:
        ConfigError: wrong options, or a machine that cannot run the verifiers as they ask. Nothing else, then or
            later: failures become verdicts.
    """

    def __init__(
        self, verifier_options: Mapping[str, Any], num_workers: int = 2, deadline_seconds: float = 10.0
    ) -> None:
        self.verifier = build(verifier_options)
        """The same verifiers, for whoever wants to know what they accept; cases are judged elsewhere."""
        for part in self.verifier.verifiers.values():
            part.check_machine()
        self.deadline_seconds = deadline_seconds
        self.seconds: dict[Hashable, float] = {}
        """Seconds each case of the last `collect` or `score` took."""
        self._nursery = _Nursery({name: dict(options or {}) for name, options in verifier_options.items()})
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._batch = _Batch()
        self._lock = threading.Lock()
        self._closed = False
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(num_workers)]
        for thread in self._threads:
            thread.start()

    def submit(self, key: Hashable, case: Case) -> None:
        """Queues a case and returns at once."""
        self._enqueue(key, case, self._batch)

    def collect(self) -> dict[Hashable, Verdict]:
        """Waits for every case submitted since the last `collect`; verdicts by key."""
        batch, self._batch = self._batch, _Batch()
        batch.wait(lambda count: None)
        self.seconds = batch.seconds
        return batch.verdicts

    def score(self, cases: Sequence[Case], advance: Callable[[int], object] = lambda count: None) -> list[Verdict]:
        """Verdicts in the order of the cases; `advance` is told how many have just come."""
        batch = _Batch()
        for index, case in enumerate(cases):
            self._enqueue(index, case, batch)
        batch.wait(advance)
        self.seconds = batch.seconds
        return [batch.verdicts[index] for index in range(len(cases))]

    def close(self) -> None:
        """Ends every process; cases still waiting get an `error`. Safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for _ in self._threads:
                self._jobs.put(None)
        self._nursery.close()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Scorer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _enqueue(self, key: Hashable, case: Case, batch: _Batch) -> None:
        batch.expect()
        with self._lock:
            if not self._closed:
                self._jobs.put(_Job(key, case, batch))
                return
        batch.put(key, Verdict(0.0, "error", detail="the scorer was closed"), 0.0)

    def _work(self) -> None:
        child: _Child | None = None
        while (job := self._jobs.get()) is not None:
            started = time.monotonic()
            try:
                if child is None or child.is_gone():
                    child = self._nursery.child()
                started = time.monotonic()
                verdict, alive = child.judge(job.case, self.deadline_seconds)
                if not alive:
                    child.kill()
                    child = None
            # A reference that JSON cannot carry, a process that does not start: the case gets a verdict all the same.
            except Exception as error:
                verdict = Verdict(0.0, "error", detail=f"{type(error).__name__}: {error}"[:500])
                _kill(child)
                child = None
            job.batch.put(job.key, verdict, time.monotonic() - started)
        _kill(child)


def _kill(child: _Child | None) -> None:
    if child is not None:
        child.kill()


class _Nursery:
    """The process that forks children; started again when it dies."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.lock = threading.Lock()
        self.closed = False
        self.failed_starts = 0
        self._start()

    def _start(self) -> None:
        self.has_children = False
        self.control, theirs = socket.socketpair()
        package_folder = str(Path(__file__).parents[1])
        path = [package_folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rlvr.verifiers.worker", str(theirs.fileno()), json.dumps(self.options)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # Python's hash seed decides the order sympy tries things in: the same run, the same verdicts.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is for the trainer
            )

    def child(self) -> _Child:
        """A fresh child, ready to judge.

        Raises:
            OSError: it does not start.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs, self.lock:
                self._ensure_running()
                socket.send_fds(self.control, [b"c"], [theirs.fileno()])
            child = _Child(ours)
        except OSError:
            ours.close()
            self.failed_starts += 1
            raise
        self.failed_starts = 0
        self.has_children = True
        return child

    def _ensure_running(self) -> None:
        if self.closed:
            raise OSError("the scorer was closed")
        if self.failed_starts >= MAX_FAILED_STARTS:
            raise OSError("the verifiers' process does not start; its error is on stderr")
        if self.process.poll() is not None:
            self.control.close()
            self._start()

    def close(self) -> None:
        """The process ends its children and then itself; one that still imports has no children."""
        with self.lock:
            self.closed = True
            self.control.close()
            try:
                self.process.wait(timeout=1.0 if self.has_children else 0.0)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


class _Child:
    """One judging process, seen through its socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.settimeout(STARTUP_SECONDS)
        hello = self._next(time.monotonic() + STARTUP_SECONDS)
        if hello is None:
            raise OSError("the verifiers' process did not start; its error is on stderr")
        self.pid = int(hello["pid"])

    def judge(self, case: Case, deadline_seconds: float) -> tuple[Verdict, bool]:
        """The verdict, and whether the process can take another case."""
        send(self.connection, asdict(case))
        deadline = time.monotonic() + deadline_seconds
        fallback: Verdict | None = None
        while (message := self._next(deadline)) is not None:
            if "verdict" in message:
                return _verdict(message["verdict"]), True
            fallback = _verdict(message["late"])
            deadline = min(deadline, time.monotonic() + message["seconds"])
        late = time.monotonic() >= deadline
        if fallback is not None:
            return fallback, False
        if late:
            return Verdict(0.0, "timeout", detail=f"no verdict within {deadline_seconds:g} s"), False
        return Verdict(0.0, "error", detail="the verifier's process died"), False

    def is_gone(self) -> bool:
        """Whether it died between two cases (a machine short of memory kills what is idle)."""
        if not select.select([self.connection], [], [], 0)[0]:
            return False
        self.connection.close()
        return True

    def _next(self, deadline: float) -> dict[str, Any] | None:
        """The next message; None at the deadline or when the process is gone."""
        readable, _, _ = select.select([self.connection], [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            return None
        with contextlib.suppress(ConnectionError, TimeoutError):
            return receive(self.connection)
        return None

    def kill(self) -> None:
        self.connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def _verdict(fields: dict[str, Any]) -> Verdict:
    steps = [(int(at), float(reward)) for at, reward in fields["step_rewards"]]
    return Verdict(**{**fields, "step_rewards": steps})


def status_counts(verdicts: Iterable[Verdict]) -> dict[Status, int]:
    """How many of each status, the commonest first."""
    return dict(Counter(verdict.status for verdict in verdicts).most_common())


@dataclass(frozen=True)
class Defect:
    """A prompt whose reference the verifier cannot be trusted with."""

    prompt: Prompt
    problem: str
    """What the verifier did with which response."""
    verdict: Verdict


@dataclass(frozen=True)
class Audit:
    """What was found of references."""

    defects: list[Defect]
    """In the order of the prompts."""
    silent: frozenset[str]
    """Prompts whose reference tells no right answer: of them only that a wrong one fails was seen."""


def audit(scorer: Scorer, prompts: Sequence[Prompt]) -> Audit:
    """Whether every reference is accepted in its own spelling and a perturbed one is not.

    Where no verifier can write its own test, an empty response shows whether it can read the reference.
    """
    outcome = scorer.verifier.outcome
    trials: list[tuple[Prompt, str, str, bool | None]] = []  # prompt, name, response, whether that is right
    silent = set()
    for prompt in prompts:
        if outcome is None:
            trials.append((prompt, "an empty answer", "", None))
            continue
        if right := outcome.right_answer(prompt.reference):
            trials.append((prompt, "its own reference", right, True))
        else:
            silent.add(prompt.id)
        trials.append((prompt, "a wrong answer", outcome.wrong_answer(prompt.reference), False))
    # Without the question: a right answer may stand in it.
    cases = [Case(response, prompt.reference, num_tokens=1, extra=prompt.extra) for prompt, _, response, _ in trials]
    defects: list[Defect] = []
    for (prompt, name, response, is_right), verdict in zip(trials, scorer.score(cases), strict=True):
        if verdict.is_fault or (is_right is not None and verdict.is_correct != is_right):
            problem = f"{name} {response[:200]!r} is {verdict.status}: {verdict.detail}".rstrip(": ")
            defects.append(Defect(prompt, problem, verdict))
    return Audit(defects, frozenset(silent))
