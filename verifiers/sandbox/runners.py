"""The fork servers of this process, one for each language and set of options."""

from __future__ import annotations

import os

from rlvr.verifiers.sandbox import levels
from rlvr.verifiers.sandbox.box import Sandbox
from rlvr.verifiers.sandbox.languages import LANGUAGES
from rlvr.verifiers.sandbox.options import SandboxError, SandboxOptions
from rlvr.verifiers.sandbox.remote import SandboxFusion

_open: dict[tuple[int, str, SandboxOptions], Sandbox] = {}


def open_runs(language: str, options: SandboxOptions) -> Sandbox | SandboxFusion:
    """This process's fork server for the options, or the remote one.

    Raises:
        SandboxError: this machine does not give what the options require.
    """
    if options.remote is not None:
        return SandboxFusion(options, LANGUAGES[language].remote_name)
    # A server of the process that forked this one is not ours to talk to.
    key = (os.getpid(), language, options)
    if key not in _open:
        if missing := levels.shortfall(options):
            raise SandboxError(missing)
        level = levels.assess(options).level
        assert level is not None
        _open[key] = Sandbox(level, options, LANGUAGES[language])
    return _open[key]


def close_all() -> None:
    """Ends this process's fork servers; they end with it anyway."""
    for key in [key for key in _open if key[0] == os.getpid()]:
        _open.pop(key).close()


def prepare(options: SandboxOptions) -> None:
    """Finds out what the machine offers, so that processes forked from this one need not."""
    if options.remote is None:
        levels.assess(options)
