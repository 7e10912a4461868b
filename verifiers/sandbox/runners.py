"""Languages by name: another one is an entry."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rlvr.verifiers.sandbox import levels
from rlvr.verifiers.sandbox.box import Sandbox
from rlvr.verifiers.sandbox.options import SandboxError, SandboxOptions
from rlvr.verifiers.sandbox.remote import SandboxFusion


@dataclass(frozen=True)
class Runner:
    """How programs of a language are found and run."""

    tags: tuple[str, ...]
    """Names that its blocks of code carry."""
    remote_name: str
    """What SandboxFusion calls it."""


RUNNERS = {"python": Runner(tags=("python", "python3", "py"), remote_name="python")}

_open: dict[tuple[int, str, SandboxOptions], Sandbox] = {}


def open_runs(language: str, options: SandboxOptions) -> Sandbox | SandboxFusion:
    """This process's fork server for the options, or the remote one.

    Raises:
        SandboxError: this machine does not give what the options require.
    """
    if options.remote is not None:
        return SandboxFusion(options, RUNNERS[language].remote_name)
    # A server of the process that forked this one is not ours to talk to.
    key = (os.getpid(), language, options)
    if key not in _open:
        if missing := levels.shortfall(options):
            raise SandboxError(missing)
        level = levels.assess(options).level
        assert level is not None
        _open[key] = Sandbox(level, options)
    return _open[key]


def close_all() -> None:
    """Ends this process's fork servers; they end with it anyway."""
    for key in [key for key in _open if key[0] == os.getpid()]:
        _open.pop(key).close()


def prepare(language: str, options: SandboxOptions) -> None:
    """Finds out what the machine offers, so that processes forked from this one need not."""
    if options.remote is None:
        levels.assess(options)
