"""Which files an interpreter needs, and so may be read by the programs it runs."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache

from rlvr.verifiers.sandbox.options import SandboxError

_ASK = """
import ctypes, json, math, os, sys, sysconfig, zlib
paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
paths += [os.path.dirname(sys.executable) if sys.base_prefix != "/usr" else os.path.realpath(sys.executable)]
with open("/proc/self/maps") as maps:
    files = {line.split(None, 5)[5].strip() for line in maps if len(line.split(None, 5)) == 6}
paths += sorted({os.path.dirname(file) for file in files if ".so" in os.path.basename(file)})
print(json.dumps(paths))
"""

_SYSTEM = ("/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo", "/lib64")


@cache
def interpreter_paths(python: str) -> list[str]:
    """Standard library, shared libraries and time zones; no installed packages of a system's interpreter.

    Raises:
        SandboxError: it cannot be run.
    """
    try:
        done = subprocess.run(
            [os.path.realpath(python), "-s", "-S", "-c", _ASK], capture_output=True, text=True, env={}, timeout=60
        )
        paths = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"sandbox.python={python}: does not run as a Python interpreter ({error})") from error
    return [path for path in dict.fromkeys([*paths, *_SYSTEM]) if path and os.path.exists(path)]
