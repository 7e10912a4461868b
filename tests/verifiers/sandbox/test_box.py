"""What a fork server holds a whole program to, and what is left when it or its owner dies."""

import glob
import os
import signal
import tempfile
import time

import pytest
from watch import common_python

from rlvr.errors import ConfigError
from rlvr.validation import validate
from rlvr.verifiers.sandbox.box import Sandbox
from rlvr.verifiers.sandbox.levels import failure
from rlvr.verifiers.sandbox.options import Limits, SandboxOptions
from rlvr.verifiers.sandbox.server import FOLDER_PREFIX

LIMITS = Limits(cpu_seconds=10, wall_seconds=30)

# The process and its children take all they get, at the same time, and tell how much that was.
GREEDY = """
import os

def take():
    held, size = [], 64 << 20
    while size >= 1 << 20:
        try:
            held.append(bytearray(size))
        except MemoryError:
            size //= 2
    return held

told, tell = os.pipe()
everyone, over = os.pipe()
for _ in range(3):
    if os.fork() == 0:
        os.close(over)
        held = take()
        os.write(tell, b"%d " % sum(map(len, held)))
        os.read(everyone, 1)
        os._exit(0)
held = take()
taken = b""
while taken.count(b" ") < 3:
    taken += os.read(told, 100)
os.close(over)
print(sum(map(int, taken.split())) + sum(map(len, held)))
"""


def landlock(**others):
    options = SandboxOptions(python=common_python(), **others)
    if why := failure("landlock", options):
        pytest.skip(why)
    return Sandbox("landlock", options)


def folders(pid):
    return glob.glob(f"{FOLDER_PREFIX}{pid}-*")


@pytest.mark.parametrize("level", ["namespaces", "landlock"])
def test_memory_is_that_of_all_processes_together(level):
    options = SandboxOptions(python=common_python(), memory_mb=512, max_processes=4)
    if why := failure(level, options):
        pytest.skip(why)
    with Sandbox(level, options) as sandbox:
        outcome = sandbox.program(GREEDY, "", LIMITS)
    assert outcome.is_clean, outcome
    assert 64 << 20 < int(outcome.stdout) < 512 << 20


def test_one_process_alone_may_have_all():
    with landlock(memory_mb=512) as sandbox:
        outcome = sandbox.program("print(len(bytearray(400 << 20)))", "", LIMITS)
        assert outcome.stdout == b"%d\n" % (400 << 20)
        assert not sandbox.program("bytearray(512 << 20)", "", LIMITS).is_clean


def test_shares_that_no_interpreter_fits_in_are_refused():
    with pytest.raises(ConfigError, match="max_processes=32 needs memory_mb=2048 at least, for equal shares"):
        validate(SandboxOptions, {"max_processes": 32}, "verifier.code.sandbox")
    assert validate(SandboxOptions, {"max_processes": 16}, "verifier.code.sandbox").memory_mb == 1024


def test_a_folder_does_not_outlive_a_server_that_is_killed():
    with landlock() as sandbox:
        assert sandbox.program("open('kept', 'w').write('x'); print(1)", "", LIMITS).is_clean
        server = sandbox.pid
        assert len(folders(server)) == 1
        os.kill(server, signal.SIGKILL)
        sandbox._process.wait()
        sandbox.start()
        assert folders(server) == []
        assert len(folders(sandbox.pid)) == 1
        last = sandbox.pid
    assert folders(last) == []


@pytest.mark.parametrize("program", ["", "print(1)", "import time; time.sleep(60)"])
def test_a_server_removes_its_folder_when_its_owner_dies(program):
    """While nothing runs, with a report that nobody has read, and in the middle of a run."""
    sandbox = landlock()
    sandbox.start()
    server = sandbox.pid
    assert len(folders(server)) == 1
    if program:
        with tempfile.TemporaryFile() as source, open(os.devnull, "r+b") as nothing:
            source.write(program.encode())
            source.seek(0)
            sandbox._request("program", LIMITS, [source.fileno(), *[nothing.fileno()] * 3])
            time.sleep(0.5)
    sandbox._control.close()  # as the end of its process would
    assert sandbox._process.wait(timeout=20) == 0
    assert folders(server) == []
    sandbox.close()
