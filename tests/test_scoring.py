"""Worker processes: order, deadlines, crashes, memory, and that nothing is left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rlvr.errors import ConfigError
from rlvr.records import Prompt
from rlvr.scoring import Scorer, audit, status_counts
from rlvr.verifiers.base import Case
from rlvr.verifiers.worker import MEMORY_BYTES

SLOW_SUM = r"\boxed{\sum_{k=1}^{\infty} \frac{\sin(k)}{k^3}}"


def case(answer, gold="42", **fields):
    return Case(rf"\boxed{{{answer}}}", gold, **fields)


def children(pid):
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def own_children():
    return {
        pid for task in Path("/proc/self/task").iterdir() for pid in map(int, (task / "children").read_text().split())
    }


@pytest.fixture
def started():
    """A scorer with one worker at rest, and the process of that worker."""
    before = own_children()
    with Scorer({"math": {"symbolic_seconds": 0.5}}, num_workers=1, deadline_seconds=1.0) as scorer:
        assert scorer.score([case(42)])[0].is_correct
        (parent,) = own_children() - before
        (child,) = children(parent)
        yield scorer, parent, child


def test_verdicts_come_in_the_order_of_the_cases():
    with Scorer({"math": {}}, num_workers=3) as scorer:
        told = []
        verdicts = scorer.score([case(i, str(i - i % 2)) for i in range(200)], told.append)
        assert [verdict.is_correct for verdict in verdicts] == [True, False] * 100
        assert [verdict.extracted for verdict in verdicts] == [str(i) for i in range(200)]
        assert sum(told) == 200
        assert set(scorer.seconds) == set(range(200))
        assert status_counts(verdicts) == {"correct": 100, "wrong": 100}


def test_cases_are_submitted_while_others_are_judged():
    with Scorer({"math": {}, "format": {"weight": 0.5}}, num_workers=2) as scorer:
        for i in range(20):
            scorer.submit(("group", i), case(i, "3"))
        verdicts = scorer.collect()
        assert [key for key, verdict in verdicts.items() if verdict.is_correct] == [("group", 3)]
        assert set(verdicts) == {("group", i) for i in range(20)}
        assert scorer.collect() == {}
        scorer.submit("same", case(1))
        scorer.submit("same", case(42))
        assert set(scorer.collect()) == {"same"}


def test_any_thread_may_use_it_at_the_same_time():
    with Scorer({"math": {}}, num_workers=2) as scorer:
        results = {}

        def score(gold):
            results[gold] = [v.is_correct for v in scorer.score([case(i, str(gold)) for i in range(10)])]

        threads = [threading.Thread(target=score, args=(gold,)) for gold in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert results == {gold: [i == gold for i in range(10)] for gold in range(10)}


def test_the_constructor_waits_for_nothing_and_the_deadline_does_not_count_the_start():
    started = time.monotonic()
    with Scorer({"math": {}}, num_workers=1, deadline_seconds=0.25) as scorer:
        assert time.monotonic() - started < 0.5
        assert scorer.score([case(42)])[0].is_correct
        assert scorer.seconds[0] < 0.25


def test_a_process_that_hangs_is_killed_and_replaced(started):
    scorer, parent, child = started
    os.kill(child, signal.SIGSTOP)
    begun = time.monotonic()
    hung, after = scorer.score([case(42), case(42)])
    assert (hung.status, hung.reward, hung.is_fault) == ("timeout", 0.0, True)
    assert after.is_correct
    assert 1.0 <= scorer.seconds[0] < 2.0
    assert time.monotonic() - begun < 4.0
    assert children(parent) != [child]


def test_a_process_that_died_between_cases_costs_nothing(started):
    scorer, _, child = started
    os.kill(child, signal.SIGKILL)
    time.sleep(0.2)
    assert scorer.score([case(42)])[0].is_correct


def test_a_process_that_dies_at_work_is_an_error_and_the_case_is_kept(started):
    scorer, _, child = started
    os.kill(child, signal.SIGSTOP)
    threading.Timer(0.3, os.kill, (child, signal.SIGKILL)).start()
    died, after = scorer.score([case(42), case(42)])
    assert (died.status, died.detail) == ("error", "the verifier's process died")
    assert after.is_correct


def test_the_process_that_starts_the_others_is_started_again(started):
    scorer, parent, _ = started
    os.kill(parent, signal.SIGKILL)
    time.sleep(0.3)
    assert scorer.score([case(42)])[0].is_correct


def test_what_the_response_makes_slow_is_wrong_and_not_a_fault(started):
    scorer, _, _ = started
    slow, after = scorer.score([Case(SLOW_SUM, "42"), case(42)])
    assert (slow.status, slow.parts) == ("wrong", {"math": 0.0})
    assert "0.5 s" in slow.detail
    assert scorer.seconds[0] < 1.0
    assert after.is_correct


def test_a_case_that_cannot_be_sent_is_an_error(started):
    scorer, _, _ = started
    odd = [case(42, gold) for gold in (object(), {1, 2}, b"42")]
    assert [verdict.status for verdict in scorer.score([*odd, case(42)])] == ["error", "error", "error", "correct"]


def test_lone_surrogates_and_large_texts_pass(started):
    scorer, _, _ = started
    large = Case("x\udcff\x00" * 1_000_000 + r"\boxed{42}", "42", prompt="\ud800")
    assert scorer.score([large])[0].is_correct


def test_a_worker_has_a_memory_limit(started):
    _, _, child = started
    limits = Path(f"/proc/{child}/limits").read_text()
    (line,) = [line for line in limits.splitlines() if line.startswith("Max address space")]
    assert line.split()[3:5] == [str(MEMORY_BYTES)] * 2


def test_a_worker_imports_neither_torch_nor_transformers(started):
    _, _, child = started
    maps = Path(f"/proc/{child}/maps").read_text()
    assert "python" in maps
    assert "torch" not in maps
    code = (
        "import sys; from rlvr.verifiers import worker; from rlvr.verifiers.registry import build; "
        "build({'math': {}}).prepare(); print(sorted({'torch', 'transformers', 'hydra', 'sympy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['sympy']"


def test_closing_leaves_no_process_and_answers_what_waits():
    before, descriptors = own_children(), len(os.listdir("/proc/self/fd"))
    scorer = Scorer({"math": {"symbolic_seconds": 30.0}}, num_workers=2, deadline_seconds=30.0)
    assert scorer.score([case(42)])[0].is_correct
    (parent,) = own_children() - before
    processes = [parent, *children(parent)]
    for i in range(10):
        scorer.submit(i, Case(SLOW_SUM, "42"))
    time.sleep(0.3)
    scorer.close()
    scorer.close()
    assert [pid for pid in processes if Path(f"/proc/{pid}").exists()] == []
    assert own_children() == before
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert len(scorer.collect()) == 10
    assert scorer.score([case(42)])[0].status == "error"


def test_a_killed_caller_takes_its_workers_along():
    code = (
        "import os, sys; from rlvr.scoring import Scorer; from rlvr.verifiers.base import Case; "
        "s = Scorer({'math': {}}, 1); s.score([Case('', '42')]); print(s._nursery.process.pid, flush=True); "
        "sys.stdin.read()"
    )
    caller = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert caller.stdout is not None
    parent = int(caller.stdout.readline())
    processes = [parent, *children(parent)]
    assert len(processes) == 2
    caller.kill()
    caller.communicate()
    for _ in range(50):
        left = [pid for pid in processes if Path(f"/proc/{pid}").exists()]
        if not left:
            break
        time.sleep(0.1)
    assert left == []


def test_wrong_options_are_refused_at_once():
    with pytest.raises(ConfigError, match="did you mean math"):
        Scorer({"mth": {}})


def test_the_audit_names_references_that_cannot_be_trusted():
    def prompt(name, reference):
        return Prompt(id=name, text="", token_ids=[], reference=reference, source="test")

    prompts = [prompt("good", r"\frac12"), prompt("empty", ""), prompt("broken", r"\frac{1}{2"), prompt("text", "east")]
    with Scorer({"math": {"thinking": "required"}, "format": {}}, num_workers=2) as scorer:
        defects = audit(scorer, prompts).defects
    assert list(dict.fromkeys(defect.prompt.id for defect in defects)) == ["empty", "broken"]
    assert {defect.verdict.status for defect in defects} == {"unparseable_gold"}
    assert "its own reference" in defects[0].problem
    with Scorer({"format": {}}, num_workers=1) as scorer:
        assert audit(scorer, prompts).defects == []
