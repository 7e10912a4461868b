"""Languages by name: how programs are found, run here, and named to a remote server. Another one is an entry."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    """One language."""

    tags: tuple[str, ...]
    """What its blocks of code are tagged with, the first being its own name."""
    remote_name: str
    """What SandboxFusion calls it."""
    command: tuple[str, ...] = ()
    """Runs the file; empty for Python, which the fork server runs itself."""
    file: str = "solution.py"
    """The program's file, in its folder."""
    readable: tuple[str, ...] = ()
    """Files and folders that the command needs besides Python's."""

    @property
    def has_calls(self) -> bool:
        """Whether its functions can be called; any program can be run."""
        return not self.command


LANGUAGES = {
    "python": Language(("python", "python3", "py"), "python"),
    "bash": Language(
        ("bash", "sh", "shell"),
        "bash",
        ("/bin/bash", "solution.sh"),
        "solution.sh",
        ("/bin", "/usr/bin", "/lib", "/usr/lib"),
    ),
}
