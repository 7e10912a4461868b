"""What a sandbox is asked for: how strong, how much, where."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from rlvr.validation import STRICT

Level = Literal["namespaces", "landlock", "seccomp_only", "none"]
"""From the strongest to none at all."""

LEAST_MEMORY_MB = 64
"""Of a process: an interpreter takes about half of it."""

LEVELS: tuple[Level, ...] = ("namespaces", "landlock", "seccomp_only", "none")


@dataclass(frozen=True)
class SandboxOptions:
    """How programs are confined."""

    __pydantic_config__ = STRICT

    level: Literal["auto", "namespaces", "landlock", "seccomp_only", "none"] = "auto"
    """`auto`: the strongest that this machine proves to hold; `none` runs programs unconfined."""
    require: Level = "landlock"
    """Weakest level to start with; a machine that offers less is refused by name, never used in silence."""
    python: str | None = None
    """Interpreter that runs the programs (3.9 or newer); unset: this one, without its installed packages."""
    memory_mb: Annotated[int, Field(ge=LEAST_MEMORY_MB)] = 1024
    """Address space of a program in MiB; each of its `max_processes` may have an equal share, 64 at least."""
    file_mb: Annotated[int, Field(ge=1)] = 16
    """Longest output, longest file and room in the program's folder, in MiB."""
    max_processes: Annotated[int, Field(ge=1, le=256)] = 1
    """Processes of a program at a time, itself included; 1: it may start threads but no process."""
    remote: str | None = None
    """SandboxFusion server that runs the programs instead (`http://host:8080`), with an isolation of its own."""
    remote_retries: Annotated[int, Field(ge=0)] = 3
    """Attempts after a first one that the server could not answer."""

    def __post_init__(self) -> None:
        if self.memory_mb < LEAST_MEMORY_MB * self.max_processes:
            mend = f"needs memory_mb={LEAST_MEMORY_MB * self.max_processes} at least, for equal shares"
            raise ValueError(f"max_processes={self.max_processes} {mend}; memory_mb={self.memory_mb}")


@dataclass(frozen=True)
class Limits:
    """Of one run."""

    cpu_seconds: float
    wall_seconds: float


@dataclass(frozen=True)
class Outcome:
    """What became of a program, as seen from outside."""

    ended: Literal["exit", "signal", "cpu", "wall", "disk", "stop"]
    """`exit`: by itself; `signal`: by one; the others name the limit."""
    code: int = 0
    """Exit status or number of the signal."""
    stdout: bytes = b""
    stderr: bytes = b""
    cpu_seconds: float = field(default=0.0, compare=False)

    @property
    def is_clean(self) -> bool:
        return self.ended == "exit" and self.code == 0

    @property
    def why(self) -> str:
        """One line for whoever reads the verdict; empty when clean."""
        if self.is_clean:
            return ""
        limits = {"cpu": "CPU time limit", "wall": "time limit", "disk": "disk limit", "stop": "stopped"}
        if self.ended in limits:
            return limits[self.ended]
        last = self.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return (last or f"{'killed by signal' if self.ended == 'signal' else 'exit status'} {self.code}")[:200]


class SandboxError(RuntimeError):
    """The sandbox itself failed: no fault of the program."""
