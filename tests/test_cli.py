"""The dispatcher: which command runs, which exit code comes back, and that nothing heavy is imported on the way."""

import importlib
import subprocess
import sys

import pytest

from rlvr import __version__, cli

FAKES = {
    "user_error": "from rlvr.errors import DataError\ndef main(argv): raise DataError(f'{argv[0]}: no answer')",
    "ctrl_c": "def main(argv): raise KeyboardInterrupt",
    "bug": "def main(argv): raise ZeroDivisionError('a bug')",
    "fine": "def main(argv): return print(argv) or 0",
}


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Commands that end in each possible way."""
    for name, source in FAKES.items():
        (tmp_path / f"rlvr_fake_{name}.py").write_text(source)
        monkeypatch.setitem(cli.COMMANDS, name, (f"rlvr_fake_{name}", "for this test"))
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["help"]])
def test_help_names_every_command_with_its_meaning(argv, capsys):
    assert cli.main(argv) == 0
    shown = capsys.readouterr().out
    for name, (_, meaning) in cli.COMMANDS.items():
        assert name in shown
        assert meaning in shown


def test_without_a_command_the_help_is_shown_and_the_exit_code_is_2(capsys):
    assert cli.main([]) == 2
    assert "usage: rlvr COMMAND" in capsys.readouterr().out


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"rlvr {__version__}\n"


@pytest.mark.parametrize(("typed", "mend"), [("trian", "did you mean train?"), ("xyz", "known: train, eval")])
def test_unknown_command_names_the_nearest_one(typed, mend, capsys):
    assert cli.main([typed]) == 2
    error = capsys.readouterr().err
    assert f"there is no command '{typed}'" in error
    assert mend in error


@pytest.mark.usefixtures("commands")
class TestExitCodes:
    def test_a_command_gets_the_rest_of_the_line(self, capsys):
        assert cli.main(["fine", "a=1", "-m"]) == 0
        assert capsys.readouterr().out == "['a=1', '-m']\n"

    def test_a_user_error_is_one_plain_line_and_2(self, capsys):
        assert cli.main(["user_error", "x.jsonl"]) == 2
        assert capsys.readouterr().err == "error: x.jsonl: no answer\n"

    def test_a_user_error_is_red_on_a_terminal_unless_no_color_is_set(self, capsys, monkeypatch):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.delenv("NO_COLOR", raising=False)
        cli.main(["user_error", "x"])
        monkeypatch.setenv("NO_COLOR", "1")
        cli.main(["user_error", "x"])
        red, plain = capsys.readouterr().err.splitlines()
        assert red == f"\033[31m{plain}\033[0m"

    def test_ctrl_c_is_130(self):
        assert cli.main(["ctrl_c"]) == 130

    def test_a_bug_keeps_its_traceback(self):
        with pytest.raises(ZeroDivisionError):
            cli.main(["bug"])


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_exists(name):
    assert callable(importlib.import_module(cli.COMMANDS[name][0]).main)


def test_help_and_version_import_nothing_heavy():
    code = "import sys; from rlvr.cli import main; main(['--help']); main(['--version']); print(sorted(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    modules = output.splitlines()[-1]
    for heavy in ("torch", "transformers", "hydra", "omegaconf", "pydantic", "numpy", "rich"):
        assert f"'{heavy}'" not in modules


def test_a_reader_who_leaves_early_gets_no_traceback():
    command = f"{sys.executable} -m rlvr.cli train --help | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("usage:")
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_the_users_environment_stays():
    assert cli.prepared({})["GOMP_SPINCOUNT"] == cli.ENVIRONMENT["GOMP_SPINCOUNT"]
    assert cli.prepared({"GOMP_SPINCOUNT": "7", "HOME": "/h"})["GOMP_SPINCOUNT"] == "7"
    assert "GOMP_SPINCOUNT" not in cli.prepared({"OMP_WAIT_POLICY": "ACTIVE"})
