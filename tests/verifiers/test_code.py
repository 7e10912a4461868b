"""The code verifier: what programs earn, what they cannot, and that nothing is left behind."""

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest
from forgeries import FORGERIES, SLOW, STDIN, TESTS

from rlvr.errors import ConfigError
from rlvr.records import Prompt
from rlvr.scoring import Scorer, audit
from rlvr.verifiers.base import Case
from rlvr.verifiers.code import Code
from rlvr.verifiers.sandbox.levels import descendants
from rlvr.verifiers.sandbox.options import SandboxOptions
from rlvr.verifiers.sandbox.runners import close_all

SECONDS = {"test_seconds": 1.0, "case_seconds": 1.5}


@pytest.fixture(scope="module", autouse=True)
def _closed():
    yield
    close_all()


@pytest.fixture(scope="module")
def verify():
    return Code(**SECONDS)


def block(program, tag="python"):
    return f"Here it is:\n\n```{tag}\n{program}\n```\n"


def test_a_function_is_judged_by_asserts(verify):
    tests = ["assert add(1, 2) == 3", "assert add('a', 'b') == 'ab'"]
    assert verify(Case(block("def add(a, b): return a + b"), tests)).reward == 1.0
    verdict = verify(Case(block("def add(a, b): return 3"), tests))
    assert (verdict.reward, verdict.status, verdict.detail) == (0.0, "wrong", "test 2 of 2: AssertionError")
    assert verdict.extracted == "def add(a, b): return 3\n"


def test_a_share_of_the_tests_can_count():
    verify = Code(reward="fraction")
    tests = [f"assert double({i}) == {2 * i}" for i in range(4)]
    verdict = verify(Case(block("def double(x): return 2 * x if x != 1 else 1 / 0"), tests))
    assert (verdict.reward, verdict.status) == (0.75, "wrong")
    assert verdict.detail == "test 2 of 4: ZeroDivisionError: division by zero"
    stdin = {"inputs": ["1", "2"], "outputs": ["1", "4"]}
    assert verify(Case(block("print(int(input()))"), stdin)).reward == 0.5


def test_a_program_is_judged_by_what_it_prints(verify):
    tests = {"private_tests": {"input": ["2 3\n", "10 -4\n"], "output": ["5\n", "6\n"]}}
    assert verify(Case(block("a, b = map(int, input().split())\nprint(a + b)"), tests)).is_correct
    verdict = verify(Case(block("a, b = map(int, input().split())\nprint(abs(a) + b)"), tests))
    assert verdict.is_correct
    verdict = verify(Case(block("a, b = map(int, input().split())\nprint(a + abs(b))"), tests))
    assert verdict.detail == "test 2 of 2: printed '14', not '6'"
    verdict = verify(Case(block("print(5)\nraise ValueError('so')"), tests))
    assert verdict.detail == "test 1 of 2: ValueError: so"


def test_a_class_of_the_program_is_made_and_used_by_its_tests(verify):
    tests = [
        "s = Stack(); s.push(1); s.push(2)",
        "assert s.pop() == 2 and s.items == [1]",
        "s.items = [7]\nassert s.pop() == 7",
        "assert [n for n in s.numbers()] == [0, 1, 2]",
    ]
    program = (
        "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n"
        "    def pop(self): return self.items.pop()\n    def numbers(self): yield from range(3)\n"
    )
    verdict = verify(Case(block(program), tests))
    assert verdict.is_correct, verdict.detail


def test_every_type_of_value_crosses_both_ways(verify):
    values = (
        "None, True, 0, -1, 2**70, -2**53, 1.5, float('inf'), 'a\\0\\ud800', b'\\xff', (), (1,), [[]], {}, {1: {2}}, "
        "{(1, 2): 'x'}, {None: None}, frozenset({1}), 1 + 2j, range(3), int, [1, 'a', None], [1, 2**60]"
    )
    tests = [f"for v in ({values}):\n    assert f(v) == v and type(f(v)) is type(v)"]
    verdict = verify(Case(block("def f(x): return x"), tests))
    assert verdict.is_correct, verdict.detail


@pytest.mark.parametrize(
    ("response", "status"),
    [
        ("I cannot do it.", "no_answer"),
        ("", "no_answer"),
        ("```text\nx\n```", "no_answer"),
        ("<think>```python\ndef f(x): return x\n```</think> done", "no_answer"),
        ("```python\ndef f(x): return x", "no_answer"),
        ("def f(x):\n    return x", "correct"),
        ("```\ndef f(x): return x\n```", "correct"),
        ("```py\ndef f(x): return x\n```\nand\n```text\n1\n```", "correct"),
        ("```python\ndef f(x): return x\n```\nNo:\n```python\ndef f(x): return 0\n```", "wrong"),
        ("~~~~Python\ndef f(x):\n    '''```'''\n    return x\n~~~~", "correct"),
        (block("x" * 300_000), "wrong"),
    ],
)
def test_the_last_block_outside_the_reasoning_counts(verify, response, status):
    assert verify(Case(response, ["assert f(5) == 5"])).status == status


def test_a_cut_response_without_a_program_is_truncated(verify):
    assert verify(Case("```python\ndef f(", ["assert f(5) == 5"], finish_reason="length")).status == "truncated"


@pytest.mark.parametrize("reference", [None, 7, [], {}, {"test_list": []}, ["assert f("], {"private_tests": "x"}, ""])
def test_tests_that_cannot_be_read_are_the_datas_fault(verify, reference):
    assert verify(Case(block("x = 1"), reference)).status == "unparseable_gold"


def test_a_test_that_hands_over_what_cannot_cross_is_the_datas_fault(verify):
    assert verify(Case(block("def f(x): return 1"), ["assert f(lambda: 1) == 1"])).status == "unparseable_gold"


def test_helpers_of_the_prompt_belong_to_the_tests(verify):
    prompt = 'import math\n\ndef twice(x):\n    return 2 * x\n\ndef f(x):\n    """Half of twice x."""\n'
    reference = {
        "test": "def check(candidate):\n    assert twice(candidate(3)) == 6\n    assert candidate(4) == math.sqrt(16)",
        "entry_point": "f",
        "prompt": prompt,
        "canonical_solution": "    return twice(x) / 2\n",
    }
    assert verify(Case(verify.right_answer(reference), reference)).is_correct
    assert verify(Case("    return x\n", reference)).is_correct
    assert verify(Case(block("def f(x): return math.floor(x)"), reference)).is_correct
    cheat = "def twice(x): return 6\ndef f(x): return 4"
    assert verify(Case(block(cheat), reference)).status == "wrong"


def test_forged_verdicts_earn_nothing(verify):
    expected = random.Random(5).randrange(10**14, 10**15)
    earned = {}
    for name, program in FORGERIES.items():
        for test in TESTS if name not in SLOW else TESTS[:1]:
            verdict = verify(Case(block(program.format()), [test.format(expected=expected)]))
            if verdict.status != "wrong" or verdict.reward:
                earned[name] = (test, verdict.status, verdict.detail)
    for name, program in STDIN.items():
        reference = {"inputs": ["17"], "outputs": [str(expected)]}
        verdict = verify(Case(block(program.format(expected="9" * 15)), reference))
        if verdict.status != "wrong" or verdict.reward:
            earned[name] = (verdict.status, verdict.detail)
    assert earned == {}


def test_right_programs_are_still_right_after_all_that(verify):
    assert verify(Case(block("def f(x): return x"), ["assert f(5) == 5"])).is_correct


def test_hostile_programs_leave_nothing(verify):
    def state():
        return (
            len(os.listdir("/proc/self/fd")),
            len(descendants(os.getpid())),
            sorted(Path(tempfile.gettempdir()).glob("rlvr-sandbox-*")),
        )

    names = ("exit without tidying", "equal to everything", "closes the channel", "frame of nonsense", "no function")
    programs = [FORGERIES[name].format() for name in names]
    programs += ["import os\nos.fork()\ndef f(x): return 1", "open('x', 'w').write('x')\ndef f(x): return 1"]
    case = [Case(block(program), ["assert f(3) == 12345"]) for program in programs]
    assert [verify(each).status for each in case] == ["wrong"] * len(case)
    before = state()
    for i in range(140):
        assert verify(case[i % len(case)]).status == "wrong"
    assert state() == before


def test_a_killed_worker_leaves_no_process_of_its_sandbox():
    before = descendants(os.getpid())
    slow = Case(block("import time\ndef f(x): time.sleep(600)"), ["assert f(3) == 1"])
    with Scorer({"code": {"case_seconds": 500.0}}, num_workers=1, deadline_seconds=1.5) as scorer:
        (verdict,) = scorer.score([slow])
        assert (verdict.status, verdict.detail) == ("wrong", "tests not done within 500 s")
        assert scorer.score([Case(block("def f(x): return x"), ["assert f(3) == 3"])])[0].is_correct
        running = descendants(os.getpid()) - before
        scorer.score([slow])
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in running) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in running if Path(f"/proc/{pid}").exists()] == []


def test_a_program_that_keeps_its_tests_busy_is_wrong_not_a_fault():
    endless = Case(block("def f(x): return 1"), ["n = f(3)\nwhile n: pass\nassert n"])
    with Scorer({"code": SECONDS}, num_workers=1, deadline_seconds=30.0) as scorer:
        (verdict,) = scorer.score([endless])
    assert (verdict.status, verdict.detail) == ("wrong", "tests not done within 1.5 s")


def test_a_server_that_dies_is_started_again(verify):
    case = Case(block("def f(x): return x"), ["assert f(3) == 3"])
    assert verify(case).is_correct
    (server, *_) = descendants(os.getpid())
    os.kill(server, signal.SIGKILL)
    assert [verify(case).status for _ in range(3)][1:] == ["correct", "correct"]


def test_a_machine_that_is_too_weak_is_refused_with_the_mend():
    with pytest.raises(ConfigError, match=r"verifier\.code\.sandbox\.require='landlock': level=none is weaker"):
        Scorer({"code": {"sandbox": {"level": "none"}}})
    with pytest.raises(ConfigError, match=r"sandbox\.python=/no/python: does not run"):
        Scorer({"code": {"sandbox": {"python": "/no/python"}}})
    verdict = Code(sandbox=SandboxOptions(level="none"))(Case(block("x = 1"), ["assert x == 1"]))
    assert verdict.status == "error"
    assert "weaker" in verdict.detail


def test_options_are_checked():
    with pytest.raises(ConfigError, match=r"verifier\.code\.sandbox\.level='docker'"):
        Scorer({"code": {"sandbox": {"level": "docker"}}})


def test_the_audit_accepts_solutions_and_refuses_their_shells():
    def prompt(name, **reference):
        return Prompt(id=name, text="", token_ids=[], reference=reference, source="")

    good = prompt("good", test_list=["assert f(3) == 9"], code="def f(x): return x * x")
    weak = prompt("weak", test_list=["assert not f(3)"], code="def f(x): return False")
    bad = prompt("bad", test_list=["assert f(3) == 9"], code="def f(x): return x + x")
    silent = prompt("silent", test_list=["assert f(3) == 9"])
    broken = prompt("broken", test_list="?")
    with Scorer({"code": {}}, num_workers=1) as scorer:
        audited = audit(scorer, [good, weak, bad, silent, broken])
    assert [defect.prompt.id for defect in audited.defects] == ["weak", "bad", "broken", "broken"]
    assert audited.silent == {"silent"}


def test_threads_may_share_a_verifier(verify):
    from concurrent.futures import ThreadPoolExecutor

    def run(i):
        return verify(Case(block(f"def f(x): return x + {i}"), [f"assert f(1) == {i + 1}"])).status

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(40))) == ["correct"] * 40


def test_the_interpreters_optimisation_does_not_remove_the_tests():
    import subprocess

    code = (
        "from rlvr.verifiers.base import Case; from rlvr.verifiers.code import Code; "
        "print(Code()(Case('```python\\ndef f(x): return 1\\n```', ['assert f(1) == 2'])).status)"
    )
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "wrong"


def test_another_language_is_an_entry():
    verify = Code(language="bash", **SECONDS)
    reference = {"inputs": ["3 4\n", "10 5\n"], "outputs": ["7", "15"]}
    assert verify(Case(block("read a b\necho $((a + b))", "bash"), reference)).is_correct
    assert verify(Case(block("read a b\necho 7", "sh"), reference)).detail == "test 2 of 2: printed '7', not '15'"
    assert verify(Case(block("echo $((3 + 4)"), reference)).status == "no_answer"
    for program in ("cat /etc/passwd", "exec 3<>/dev/tcp/127.0.0.1/80 && echo 7", "echo x > /tmp/rlvr-escape; echo 7"):
        assert verify(Case(block(program, "bash"), reference)).status == "wrong"
    assert not Path("/tmp/rlvr-escape").exists()
    assert verify(Case(block("echo 1", "bash"), ["assert f(1) == 1"])).status == "unparseable_gold"
