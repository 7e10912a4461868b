"""`rlvr export RUN [step=N] [output=FOLDER] [adapter=true]`: a run's checkpoint as a plain Hugging Face folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from rlvr import checkpoint
from rlvr.errors import CheckpointError, ConfigError

USAGE = """usage: rlvr export RUN [step=N] [output=FOLDER] [adapter=true]

Writes weights, configuration and tokenizer of a run's checkpoint as a folder that transformers and vLLM load.
  step=N          which checkpoint; the newest when left out
  output=FOLDER   where to; RUN/export/step-00000N when left out
  adapter=true    of a run with lora.rank: the adapters alone, as peft reads them, not merged into the weights"""

KEYS = ("step", "output", "adapter")


def main(argv: list[str]) -> int:
    """Runs `rlvr export`.

    Raises:
        RlvrError: no such run or checkpoint, a damaged one, or an output that is taken.
    """
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if argv else 2
    run, *rest = argv
    options = dict(part.partition("=")[::2] for part in rest)
    for key, value in options.items():
        if key not in KEYS:
            raise ConfigError(key, value, f"there is no such key; known: {', '.join(KEYS)}")
    saved = _checkpoint(Path(run), options.get("step"))
    output = Path(options.get("output") or Path(run) / "export" / saved.name)
    if output.exists() and any(output.iterdir()):
        raise ConfigError("output", str(output), "is taken; name another folder, or delete it")
    alone = options.get("adapter", "false")
    if alone not in ("true", "false"):
        raise ConfigError("adapter", alone, "must be true or false")
    _export(Path(run), saved, output, adapter_alone=alone == "true")
    print(f"{saved} -> {output}")
    return 0


def _checkpoint(run: Path, step: str | None) -> Path:
    folder = run / "checkpoints"
    saved = checkpoint.latest(folder) if step is None else folder / f"step-{int(step):06d}" if step.isdigit() else None
    if saved is None or not saved.is_dir():
        there = ", ".join(sorted(path.name for path in folder.glob("step-*"))) or "none"
        raise CheckpointError(f"{run}: no checkpoint{f' of step={step}' if step else ''}; there are: {there}")
    return saved


def _export(run: Path, saved: Path, output: Path, *, adapter_alone: bool) -> None:
    from rlvr.config_file import load_config
    from rlvr.policy.model import load_tokenizer
    from rlvr.policy.trainer import ADAPTER, MODEL

    checkpoint.verify(saved)
    config = load_config(run)
    adapter = saved / ADAPTER
    if adapter_alone and not adapter.is_dir():
        raise ConfigError("adapter", "true", f"lora.rank={config.lora.rank}: there are no adapters; leave the key out")
    # The tokenizer lies beside the model the run began with; the run keeps its own copy of the embedded one.
    made = run / "start_model"
    model = config.model if not made.exists() else type(config.model)(path=str(made))
    tokenizer = load_tokenizer(model)
    unfinished = output.with_name(output.name + ".tmp")
    if adapter.is_dir() and not adapter_alone:
        from rlvr.lora import write_merged

        base = model if not config.cold_start.steps else type(config.model)(path=str(run / "cold_start"))
        write_merged(base, config.policy.dtype, adapter, unfinished)
    else:
        shutil.copytree(adapter if adapter_alone else saved / MODEL, unfinished, dirs_exist_ok=True)
    tokenizer.save_pretrained(unfinished)
    if output.exists():
        output.rmdir()
    unfinished.rename(output)
