"""Low-rank adapters beside linear layers: W x + alpha / rank B A x (LoRA, Hu et al. 2021, eq. 3), made by peft."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from rlvr.config import LoraConfig, ModelConfig
from rlvr.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def add_adapters(module: PreTrainedModel, config: LoraConfig, seed: int = 0) -> None:
    """Freezes the model's weights and puts adapters beside its linear layers, in place; without a rank, does nothing.

    B is 0, so the model computes what it did before. Adapters have their layer's dtype and are the only parameters that
    require a gradient; their names are `LAYER.lora_A.default.weight` [rank, in] and `LAYER.lora_B.default.weight`
    [out, rank].

    Args:
        module: may be on the meta device.
        seed: draws A, uniformly in ±in ** -0.5 as peft does; the caller's random state is left alone.

    Raises:
        ConfigError: a target that no linear layer of the model bears as its name.
    """
    if not config.rank:
        return
    from peft import LoraConfig as PeftConfig

    targets = adapted_layers(module, config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module.add_adapter(PeftConfig(r=config.rank, lora_alpha=config.alpha, target_modules=targets))


def adapted_layers(module: PreTrainedModel, config: LoraConfig) -> list[str]:
    """The last parts of the names of the linear layers that get adapters; never the output head.

    Args:
        module: a model without adapters.

    Raises:
        ConfigError: as `add_adapters`.
    """
    head = module.get_output_embeddings()
    paths = (name for name, layer in module.named_modules() if isinstance(layer, nn.Linear) and layer is not head)
    known = sorted({path.rpartition(".")[-1] for path in paths})
    if isinstance(config.targets, str):
        return known
    for target in config.targets:
        if target not in known:
            mend = f"the model has no linear layer {target!r}; known: {', '.join(known)}"
            raise ConfigError("lora.targets", config.targets, mend)
    return config.targets


def check_targets(model: ModelConfig, config: LoraConfig) -> None:
    """Refuses what `add_adapters` would, before any weight is loaded.

    Raises:
        ConfigError: as `add_adapters`.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    if config.rank:
        with torch.device("meta"):
            options = AutoConfig.from_pretrained(model.path, revision=model.revision or "main")
            adapted_layers(AutoModelForCausalLM.from_config(options), config)


@torch.no_grad()
def load_adapters(module: PreTrainedModel, folder: Path) -> None:
    """Copies adapters that `save_pretrained` wrote into those of the model, bit for bit."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import load_file

    saved = load_file(folder / "adapter_model.safetensors")
    own = get_peft_model_state_dict(module, adapter_name="default")
    for name, tensor in own.items():
        tensor.copy_(saved[f"base_model.model.{name}"])


def write_merged(base: ModelConfig, dtype: str, adapters: Path, folder: Path) -> None:
    """Writes a model with saved adapters added to its weights, in `dtype`, as an ordinary Hugging Face folder."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    module = AutoModelForCausalLM.from_pretrained(base.path, revision=base.revision or "main", dtype=dtype)
    PeftModel.from_pretrained(module, adapters).merge_and_unload().save_pretrained(folder)


@contextmanager
def without_adapters(module: PreTrainedModel) -> Iterator[None]:
    """The model as it was before `add_adapters`."""
    module.disable_adapters()
    try:
        yield
    finally:
        module.enable_adapters()
