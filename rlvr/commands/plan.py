"""`rlvr plan recipe=NAME [key=value ...]`: where a run's memory goes and its peak, before any weight is loaded."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rlvr.commands.compose import YamlSource, compose
from rlvr.config import ModelConfig, TrainConfig
from rlvr.config_checks import train_config
from rlvr.errors import ModelError
from rlvr.objectives.needs import Needs

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig

USAGE = "rlvr plan recipe=NAME [key=value ...] [--prompt-tokens N] [--config-dir DIR] [--config-path RUN]"
MIB = 2**20

VERIFIERS = 70 * MIB
"""The process that imports the verifiers: `verifier=math`, of which sympy is the largest part."""
VERIFIER_WORKER = 6 * MIB
"""What a forked worker does not share with it."""

LIBRARIES = "Python and libraries"
HEAP_GAPS = 0.22
"""What a process holds beyond its tensors, as a share of them: gaps of the C library's heap, and copies that matrix
products make inside. From W1 of `scripts/bench/step.py` with the hf engine: 4,370 MiB but for libraries and workers,
3,590 counted."""

Place = Literal["host", "gpu"]
Phase = Literal["always", "update", "generate"]
PHASES: tuple[Phase, ...] = ("always", "update", "generate")


@dataclass(frozen=True)
class Row:
    """One use of memory."""

    process: str
    name: str
    num_bytes: float
    phase: Phase = "always"
    """When it is held; updates and generation take turns in the same memory."""
    place: Place = "host"


def main(argv: list[str]) -> int:
    """Runs the command and returns its exit code.

    Raises:
        RlvrError: the configuration, the data, or the model's configuration cannot be used.
    """
    parser = argparse.ArgumentParser(prog="rlvr plan", usage=USAGE, description=__doc__)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--prompt-tokens", type=int, metavar="N", help="length of every prompt; unset: the data's own")
    parser.add_argument("--config-dir", type=Path, help="folder with more recipes and groups")
    parser.add_argument("--config-path", type=Path, metavar="RUN", help="plan a run's config.yaml")
    arguments = parser.parse_intermixed_args(argv)
    source = YamlSource(config_dir=arguments.config_dir, config_path=arguments.config_path)
    config = train_config(compose(arguments.overrides, source).values)
    with tempfile.TemporaryDirectory() as folder:
        config, lengths = inputs(config, Path(folder), arguments.prompt_tokens)
        print("\n".join(table(rows(config, lengths, resident_bytes()))))
    return 0


def inputs(config: TrainConfig, folder: Path, prompt_tokens: int | None = None) -> tuple[TrainConfig, list[int]]:
    """Imports what a run imports, and reads what it reads before its model.

    Args:
        folder: receives the tiny model.
        prompt_tokens: of each prompt, instead of reading the data.

    Returns:
        The configuration with the start model in it, and the lengths of a step's prompts, the data's longest.
    """
    from rlvr.assembly import start_model
    from rlvr.data.prompts import load_prompts
    from rlvr.data.templates import ChatTemplate
    from rlvr.policy.model import load_tokenizer

    config = replace(config, model=start_model(config, folder / "start_model"))
    number = config.policy.prompts_per_step
    if prompt_tokens is not None:
        with contextlib.suppress(ModelError):  # a configuration alone will do
            load_tokenizer(config.model)
        return config, [prompt_tokens] * number
    template = ChatTemplate(load_tokenizer(config.model), config.model.chat_template)
    prompts, _ = load_prompts(config.data, template)
    return config, sorted((len(prompt.token_ids) for prompt in prompts), reverse=True)[:number]


def resident_bytes() -> int:
    """This process's own memory: Python, the libraries that a run imports, the tokenizer."""
    with open("/proc/self/status", encoding="ascii") as status:
        return sum(int(line.split()[1]) * 1024 for line in status if line.startswith(("RssAnon", "RssFile")))


def rows(config: TrainConfig, prompt_lengths: Sequence[int], libraries: int) -> list[Row]:
    """Every use of memory of a run on one machine.

    Args:
        prompt_lengths: of a step's prompts, in tokens.
        libraries: bytes of a process that has imported what a run imports.
    """
    import torch

    on_gpu = config.policy.device == "cuda" or (config.policy.device == "auto" and torch.cuda.is_available())
    found = [Row("trainer", LIBRARIES, libraries)]
    found += _training(config, prompt_lengths, "gpu" if on_gpu else "host")
    found += _engine(config, max(prompt_lengths), "gpu" if on_gpu else "host")
    takes_turns = any(row.process != "trainer" and row.phase == "generate" for row in found)
    for process in dict.fromkeys(row.process for row in found):
        tensors = peak(row for row in found if row.process == process) - _libraries(found, process)
        phase: Phase = "always"
        if takes_turns:  # each process gives what it has freed back before the other works
            phase = "update" if process == "trainer" else "generate"
        found.append(Row(process, "gaps and inner copies", HEAP_GAPS * tensors, phase))
    workers = VERIFIERS + config.scoring.workers * VERIFIER_WORKER
    return [*found, Row("verifiers", f"{config.scoring.workers} workers and their parent", workers)]


def peak(found: Iterable[Row], place: Place = "host") -> float:
    """Bytes: what is always held, and the larger of what updates and generation take."""
    sums: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
    for row in found:
        sums[row.phase] += row.num_bytes if row.place == place else 0
    return sums["always"] + max(sums["update"], sums["generate"])


def _libraries(found: Iterable[Row], process: str) -> float:
    return sum(row.num_bytes for row in found if (row.process, row.name) == (process, LIBRARIES))


def _training(config: TrainConfig, prompt_lengths: Sequence[int], device: Place) -> Iterator[Row]:
    from rlvr.policy import footprint
    from rlvr.policy.memory import bytes_per_parameter
    from rlvr.policy.model import trained_parameters

    options, needs = config.policy, Needs(config.objective)
    model_config = _model_config(config.model)
    model = footprint.skeleton(model_config, options, lora=config.lora)
    kept = bytes_per_parameter(options)
    home: Place = "host" if options.optimizer.offload else device
    networks: dict[str, nn.Module] = {"policy": model.module}
    if needs.needs_critic and config.critic.backbone == "own":
        networks["critic"] = model.module.base_model
    trained = {name: sum(p.numel() for p in trained_parameters(module)) for name, module in networks.items()}
    for name, module in networks.items():
        number = sum(parameter.numel() for parameter in module.parameters())
        yield Row("trainer", f"{name}: weights", number * kept.weights, place=device)
        yield Row("trainer", f"{name}: float32 masters", trained[name] * kept.master_weights, place=home)
        yield Row("trainer", f"{name}: AdamW's moments", trained[name] * kept.moments, place=home)
    # The reference of a policy with adapters is the policy without them.
    if needs.needs_reference and (config.reference.path or not config.lora.rank):
        own = config.reference
        source = ModelConfig(path=own.path, revision=own.revision) if own.path else config.model
        reference = footprint.skeleton(_model_config(source), options)
        number = sum(parameter.numel() for parameter in reference.module.parameters())
        yield Row("trainer", "reference: weights", number * kept.weights, place=device)
    # The critic's are freed before the policy's are made.
    yield Row("trainer", "gradient sums", max(trained.values()) * kept.gradients, "update", home)
    microbatch = footprint.largest_microbatch(
        prompt_lengths, config.rollout.group_size, config.rollout.max_new_tokens, options, config.objective.minibatches
    )
    update = footprint.update_bytes(
        model_config,
        options,
        microbatch,
        entropy_grad=needs.needs_entropy,
        exact=needs.needs_exact_kl,
        lora=config.lora,
    )
    tokens = footprint.computed_tokens(microbatch)
    waiting: Place = "host" if options.offload_activations else device
    yield Row("trainer", f"activations of {tokens:,} tokens", update.activations, "update", waiting)
    yield Row("trainer", "log-prob chunk", update.head, "update", device)
    yield Row("trainer", "temporaries of backward", update.temporaries, "update", device)


def _engine(config: TrainConfig, longest_prompt: int, device: Place) -> Iterator[Row]:
    import torch

    from rlvr.policy import footprint as policy
    from rlvr.rollout import footprint

    options = config.rollout
    num_rows = config.policy.prompts_per_step * options.group_size
    options = replace(options, max_num_seqs=min(options.max_num_seqs, num_rows))
    model = policy.skeleton(_model_config(config.model), config.policy).module
    if options.engine == "hf":
        if options.dtype != config.policy.dtype:
            itemsize = getattr(torch, options.dtype).itemsize
            yield Row(
                "trainer", "hf engine: weights in another precision", model.num_parameters() * itemsize, place=device
            )
        for name, number in footprint.hf_bytes(model.config, options, longest_prompt).items():
            yield Row("trainer", f"hf engine: {name}", number, "generate", device)
    elif device == "host":
        yield Row("vLLM process", LIBRARIES, footprint.VLLM_LIBRARIES)
        adapters = 0
        if config.lora.rank:
            adapted = policy.skeleton(_model_config(config.model), config.policy, lora=config.lora).module
            adapters = adapted.num_parameters() - model.num_parameters()
        for name, number in footprint.vllm_bytes(model, config.model, options, longest_prompt, adapters).items():
            freed = options.sleep and name not in footprint.VLLM_ALWAYS_HOLDS
            yield Row("vLLM process", name, number, "generate" if freed else "always")
    elif torch.cuda.is_available():
        share = options.gpu_memory * torch.cuda.get_device_properties(0).total_memory
        yield Row("vLLM process", "rollout.gpu_memory", share, "generate" if options.sleep else "always", "gpu")


def _model_config(model: ModelConfig) -> PretrainedConfig:
    """Raises ModelError: there is none."""
    from transformers import AutoConfig

    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(model.path, revision=model.revision or "main")
    except (OSError, ValueError) as error:
        raise ModelError(f"model.path={model.path!r}: no model configuration: {error}") from error
    return config


def table(found: Sequence[Row]) -> list[str]:
    """Lines of a table in MiB, with a column for the GPU where something lies there."""
    places: list[Place] = ["host", "gpu"] if any(row.place == "gpu" for row in found) else ["host"]
    lines = [f"{'MiB':<50}{'held':<10}" + "".join(f"{place:>10}" for place in places)]
    for row in found:
        if row.num_bytes:
            cells = "".join(f"{row.num_bytes / MIB if row.place == place else 0:>10,.0f}" for place in places)
            lines.append(f"{row.process + ': ' + row.name:<50}{row.phase:<10}{cells}")
    peaks = "".join(f"{peak(found, place) / MIB:>10,.0f}" for place in places)
    lines.append(f"{'peak':<60}{peaks}")
    if len(places) > 1:
        lines.append("Not measured on a GPU; activations are counted as the CPU keeps them, which is more.")
    return lines
