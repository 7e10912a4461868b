"""What is left when a fork server or its owner dies."""

import glob
import os
import signal
import tempfile
import time

import pytest
from watch import common_python

from rlvr.verifiers.sandbox.box import Sandbox
from rlvr.verifiers.sandbox.levels import failure
from rlvr.verifiers.sandbox.options import Limits, SandboxOptions
from rlvr.verifiers.sandbox.server import FOLDER_PREFIX

LIMITS = Limits(cpu_seconds=10, wall_seconds=30)

def landlock(**others):
    options = SandboxOptions(python=common_python(), **others)
    if why := failure("landlock", options):
        pytest.skip(why)
    return Sandbox("landlock", options)


def folders(pid):
    return glob.glob(f"{FOLDER_PREFIX}{pid}-*")


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
