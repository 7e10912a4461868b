"""What the machine is found to offer, and how a lack is told."""

import os

import pytest
from watch import common_python

from rlvr.commands.doctor import sandbox
from rlvr.errors import ConfigError
from rlvr.verifiers.sandbox import box, landlock, levels, namespaces, seccomp, syscalls
from rlvr.verifiers.sandbox.levels import LEVELS, PROMISES, Assessment, assess, shortfall
from rlvr.verifiers.sandbox.options import SandboxOptions


@pytest.fixture
def fresh():
    levels._assess.cache_clear()
    yield
    levels._assess.cache_clear()


def test_a_stronger_level_promises_more():
    guaranteed = [Assessment(level, {}).guaranteed for level in LEVELS]
    assert [len(each) for each in guaranteed] == [7, 6, 5, 0]
    for level, promises in zip(LEVELS, guaranteed, strict=True):
        assert promises + Assessment(level, {}).not_guaranteed == list(PROMISES.values())
    assert Assessment(None, {}).guaranteed == []


def test_the_probe_finds_out_what_a_level_does_not_keep():
    with box.Sandbox("none", SandboxOptions(python=common_python(), memory_mb=512)) as unconfined:
        broken = levels._probe(unconfined)
    assert set(broken) >= {"network", "read", "write", "sight"}


def test_the_strongest_that_holds_is_taken(fresh, monkeypatch):

    options = SandboxOptions(python=common_python())
    strongest = assess(options)
    assert strongest.level in LEVELS[:-1]
    monkeypatch.setattr(levels, "failure", lambda level, options: "refused" if level == "namespaces" else "")
    levels._assess.cache_clear()
    found = assess(options)
    assert (found.level, found.failures) == ("landlock", {"namespaces": "refused"})
    assert shortfall(options) == ""
    message = shortfall(SandboxOptions(python=common_python(), require="namespaces"))
    assert message.startswith("this machine gives landlock: refused; ")
    assert message.endswith("; or accept less with sandbox.require=landlock")


def test_no_level_at_all_is_refused_however_little_is_required(fresh, monkeypatch):
    monkeypatch.setattr(levels, "failure", lambda level, options: "refused")
    assert "nothing that holds" in shortfall(SandboxOptions(require="seccomp_only"))
    assert "Linux 5.13" in shortfall(SandboxOptions(level="landlock", require="landlock"))
    assert shortfall(SandboxOptions(level="none", require="none")) == ""


def test_a_kernel_without_landlock_is_named(monkeypatch):
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    assert levels.failure("landlock", SandboxOptions()) == "the kernel has no Landlock"


def test_doctor_shows_the_level_and_what_it_leaves_open():
    facts = sandbox({"sandbox": {"python": common_python()}})
    assert facts["level"].endswith("sandbox.require=landlock")
    assert facts["holds"].startswith("no connection is made")
    refused = sandbox({"sandbox": {"level": "none"}})
    assert refused["not guaranteed"] == "; ".join(PROMISES.values())
    assert "weaker" in refused["refused"]
    with pytest.raises(ConfigError, match=r"verifier\.code\.sandbox\.leve"):
        sandbox({"sandbox": {"leve": "auto"}})


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_filters_are_whole_on_each_processor(monkeypatch, machine):
    monkeypatch.setattr("platform.machine", lambda: machine)
    for program in (
        seccomp.server_filter(write=True, execute=True),
        seccomp.server_filter(write=False, execute=False),
        seccomp.program_filter(fork=False, signal_pid=os.getpid()),
        seccomp.program_filter(fork=True, signal_pid=None),
    ):
        assert len(program) % 8 == 0
        assert len(program) // 8 <= 4096  # the kernel's limit
        assert program[-8:-6] == b"\x06\x00"  # ends in a verdict
    numbers = syscalls.numbers()
    assert len(set(numbers.values())) == len(numbers)
    dangerous = {"socket", "connect", "bind", "ptrace", "mount", "bpf", "unshare", "setns", "io_uring_setup", "chmod"}
    assert not dangerous & set(syscalls.BASIC + syscalls.OPEN + syscalls.WRITE)


def test_the_devices_are_harmless():
    assert set(namespaces.DEVICES) == {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}
