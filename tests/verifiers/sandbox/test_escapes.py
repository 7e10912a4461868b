"""Hostile programs at every level, as root and as an ordinary user: nothing happens outside, nothing is left."""

import os
import sys
from pathlib import Path

import pytest
from escapes import ESCAPES
from watch import as_nobody, common_python, run_escapes

from rlvr.verifiers.sandbox.levels import assess, failure
from rlvr.verifiers.sandbox.options import SandboxOptions

IS_ROOT = os.geteuid() == 0
only_root = pytest.mark.skipif(not IS_ROOT, reason="changes its user")


def need(level, python, max_processes=1):
    why = failure(level, SandboxOptions(python=python, max_processes=max_processes))
    if why:
        pytest.skip(f"{level}: {why}")


def test_there_are_enough_of_them():
    assert len(ESCAPES) >= 60


@pytest.mark.parametrize(("level", "max_processes"), [("namespaces", 8), ("landlock", 1)])
def test_nothing_gets_out(level, max_processes):
    python = sys.executable if level == "namespaces" else common_python()
    need(level, python, max_processes)
    assert run_escapes(level, max_processes, python) == []


@only_root
@pytest.mark.parametrize(("level", "max_processes"), [("namespaces", 8), ("landlock", 1)])
def test_nothing_gets_out_for_an_ordinary_user(level, max_processes):
    python = common_python()
    need(level, python, max_processes)
    assert as_nobody(level, max_processes, python) == []


@only_root
def test_processes_are_reaped_without_a_process_table_of_their_own():
    programs = {name: text for name, text in ESCAPES.items() if name.startswith("processes")}
    assert run_escapes("landlock", 8, common_python(), programs) == []


def test_seccomp_alone_keeps_what_it_promises():
    groups = ("network", "writing", "processes")
    programs = {name: text for name, text in ESCAPES.items() if name.startswith(groups)}
    assert run_escapes("seccomp_only", 1, common_python(), programs) == []


@only_root
def test_the_watch_sees_what_an_unconfined_program_does():
    names = [
        "network: tcp",
        "network: udp",
        "network: unix stream",
        "network: datagram of a pair",
        "network: abstract datagram of a pair",
        "network: 32-bit system calls",
        "reading: canary",
        "reading: canary by exec",
        "reading: passwords",
        "writing: new file",
        "writing: append",
        "writing: open with truncation",
        "writing: unlink",
        "writing: temporary folder",
        "writing: shared memory",
    ]
    try:
        seen = run_escapes("none", 1, common_python(), {name: ESCAPES[name] for name in names})
    finally:
        for path in ("/tmp/rlvr-escape", "/dev/shm/rlvr-escape"):
            Path(path).unlink(missing_ok=True)
    assert [name for name in names if not any(line.startswith(f"{name}:") for line in seen)] == []


@only_root
def test_an_interpreter_that_only_its_owner_can_read_is_named():
    if common_python() == os.path.realpath(sys.executable):
        pytest.skip("this interpreter can be read by all")
    why = failure("landlock", SandboxOptions(python=sys.executable))
    assert "cannot be read by another user" in why
    assert "sandbox.python" in why
    assert assess(SandboxOptions(level="landlock", python=sys.executable)).level is None
