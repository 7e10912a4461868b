"""Programs on a SandboxFusion server: one that speaks its interface, on this machine."""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rlvr.errors import ConfigError
from rlvr.scoring import Scorer
from rlvr.verifiers.base import Case
from rlvr.verifiers.code import Code
from rlvr.verifiers.sandbox.options import SandboxOptions

FIELDS = {"code", "stdin", "language", "compile_timeout", "run_timeout", "memory_limit_MB", "files", "fetch_files"}


class Fusion(BaseHTTPRequestHandler):
    """`POST /run_code` as SandboxFusion documents it, with a plain subprocess behind it."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        failure = self.server.failures.pop() if self.server.failures else None
        if failure == 503:
            self.send_error(503)
            return
        assert self.path == "/run_code"
        assert set(body) == FIELDS
        reply = self.run(body) if failure is None else {"status": "SandboxError", "message": "no room"}
        data = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def run(self, body):
        command = [sys.executable, "-I", "-c", body["code"]]
        try:
            done = subprocess.run(
                command, input=body["stdin"], capture_output=True, text=True, timeout=body["run_timeout"], check=False
            )
        except subprocess.TimeoutExpired:
            return {"status": "Failed", "run_result": {"status": "TimeLimitExceeded", "execution_time": 1.0}}
        result = {
            "status": "Finished",
            "return_code": done.returncode,
            "stdout": done.stdout,
            "stderr": done.stderr,
            "execution_time": 0.1,
        }
        return {"status": "Success" if done.returncode == 0 else "Failed", "run_result": result}

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Fusion) as server:
        server.requests, server.failures = [], []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def verify(server):
    address = f"http://127.0.0.1:{server.server_port}/"
    return Code(test_seconds=2.0, sandbox=SandboxOptions(remote=address, remote_retries=2))


def block(program):
    return f"```python\n{program}\n```"


def test_what_is_printed_is_judged(server, verify):
    reference = {"inputs": ["1 2", "3 4"], "outputs": ["3", "7"]}
    assert verify(Case(block("print(sum(map(int, input().split())))"), reference)).is_correct
    assert len(server.requests) == 2
    assert not any("7" in body["stdin"] + body["code"] for body in server.requests)
    verdict = verify(Case(block("print(3)"), reference))
    assert (verdict.status, verdict.detail) == ("wrong", "test 2 of 2: printed '3', not '7'")
    assert verify(Case(block("raise ValueError('so')"), reference)).detail == "test 1 of 2: ValueError: so"
    assert verify(Case(block("while True: pass"), reference)).detail == "test 1 of 2: time limit"


def test_functions_are_called_by_replay(server, verify):
    tests = ["c = Counter(2)", "assert c.up() == 3", "assert c.up() == 4", "assert f((1, 2)) == {(1, 2)}"]
    program = (
        "print('noise')\nclass Counter:\n    def __init__(self, n): self.n = n\n"
        "    def up(self):\n        self.n += 1\n        return self.n\ndef f(x): return {x}"
    )
    verdict = verify(Case(block(program), tests))
    assert verdict.is_correct, verdict.detail
    assert not any("assert" in body["stdin"] + body["code"].split("solution")[0] for body in server.requests)
    assert verify(Case(block("def f(x): raise SystemExit(0)"), ["assert f(1) == 1"])).status == "wrong"
    assert verify(Case(block("import os; os._exit(0)"), ["assert f(1) == 1"])).status == "wrong"


def test_what_the_server_gets_wrong_is_tried_again_and_then_no_fault_of_the_program(server, verify):
    case = Case(block("print(1)"), {"inputs": [""], "outputs": ["1"]})
    server.failures[:] = ["SandboxError", 503]
    assert verify(case).is_correct
    server.failures[:] = ["SandboxError"] * 3
    verdict = verify(case)
    assert verdict.status == "error"
    assert "SandboxError" in verdict.detail


def test_a_server_that_does_not_answer_is_refused_before_a_run(verify):
    verify.check_machine()
    with pytest.raises(ConfigError, match=r"verifier\.code\.sandbox\.remote='http://127\.0\.0\.1:9': no SandboxFusion"):
        Scorer({"code": {"sandbox": {"remote": "http://127.0.0.1:9"}}})
