"""`rlvr COMMAND ...`: picks a command and hands it the rest; nothing heavy is imported before that."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Mapping

from rlvr import __version__
from rlvr.errors import RlvrError

# Name -> (module with `main(argv) -> exit code`, one line of help).
COMMANDS = {
    "train": ("rlvr.commands.train", "train a model by a recipe; -m sweeps"),
    "eval": ("rlvr.commands.eval", "pass@k, avg@k and maj@k of a model on a data set"),
    "verify": ("rlvr.commands.verify", "run a verifier over rows of responses, without any model"),
    "recipes": ("rlvr.commands.recipes", "list the recipes, or show one resolved with the source of each value"),
    "explain": (
        "rlvr.commands.explain",
        "a recipe's formula, batch arithmetic, chosen values, and what it would refuse",
    ),
    "plan": ("rlvr.commands.plan", "where a run's memory goes and its peak, before any weight is loaded"),
    "show": ("rlvr.commands.show", "read a run's rollouts in the terminal"),
    "doctor": ("rlvr.commands.doctor", "check this machine, or whether a recipe can learn here"),
    "export": ("rlvr.commands.export", "write a checkpoint as a plain Hugging Face folder"),
}

# Read when torch and transformers are imported; what the user has set stays.
ENVIRONMENT = {
    # Turns of the loop in which an OpenMP thread waits before it sleeps, about 0.1 ms. Without any, decoding took 1.5
    # times as long; with libgomp's own 300,000 small operations take many times as long while another process has a
    # core, and one always has: the verifiers' workers, vLLM, the user's browser.
    "GOMP_SPINCOUNT": "10000",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",  # the console shows progress itself
}

OK, FAILED, USER_ERROR, INTERRUPTED = 0, 1, 2, 130


def prepared(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with what it lacks of `ENVIRONMENT`."""
    result = ENVIRONMENT | dict(environment)
    if "OMP_WAIT_POLICY" in environment and "GOMP_SPINCOUNT" not in environment:
        del result["GOMP_SPINCOUNT"]  # it would override what the user has set
    return result


def main(argv: list[str] | None = None) -> int:
    """Runs one command line and returns its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage())
        return OK if argv else USER_ERROR
    if argv[0] in ("-V", "--version"):
        print(f"rlvr {__version__}")
        return OK
    os.environ.update(prepared(os.environ))
    name, *rest = argv
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        mend = f"did you mean {close[0]}?" if close else f"known: {', '.join(COMMANDS)}"
        return _fail(f"there is no command {name!r}; {mend}")
    try:
        return importlib.import_module(COMMANDS[name][0]).main(rest)  # type: ignore[no-any-return]
    except RlvrError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`rlvr recipes | head`) has seen enough; Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def usage() -> str:
    """The text of `rlvr --help`."""
    lines = [f"  {name:<10}{meaning}" for name, (_, meaning) in COMMANDS.items()]
    head = "usage: rlvr COMMAND ...      (rlvr COMMAND --help says more; rlvr --version)"
    return "\n".join([head, "", *lines, "", "A first run: rlvr train recipe=quickstart"])


def _fail(message: str) -> int:
    line = f"error: {message}"
    colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    print(f"\033[31m{line}\033[0m" if colours else line, file=sys.stderr)
    return USER_ERROR


if __name__ == "__main__":
    sys.exit(main())
