"""Adapters instead of weights in the vLLM process: one of rank R for all requests, replaced in memory.

Shape legend: T tokens, I and O a layer's inputs and outputs, R rank.
"""

from __future__ import annotations

from typing import Any, get_args

import torch

from rlvr.config import LoraConfig
from rlvr.errors import HandoverError
from rlvr.rollout.vllm_cache import CacheHolder

ADAPTER_ID = 1
ALPHA = "lora_alpha"  # its key in vLLM's additional configuration, which workers see


def arguments(lora: LoraConfig) -> dict[str, Any]:
    """What the engine is started with; `targets` are names of layers."""
    from vllm.config.lora import MaxLoRARanks
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    # Its own gathers a copy of the adapter for every token, which made decoding many times slower.
    PunicaWrapperCPU.add_lora_linear = _add_adapter
    return {
        "enable_lora": True,
        "max_lora_rank": min(rank for rank in get_args(MaxLoRARanks) if rank >= lora.rank),
        "lora_target_modules": lora.targets,
        "additional_config": {ALPHA: lora.alpha},
        "worker_extension_cls": "rlvr.rollout.vllm_adapters.AdapterReceiver",
    }


def request() -> Any:
    """What a request names the adapter by."""
    from vllm.lora.request import LoRARequest

    return LoRARequest("policy", ADAPTER_ID, "in memory")


class AdapterReceiver(CacheHolder):
    """Where the policy has adapters: they replace those before in vLLM's only slot.

    vLLM's own way to load adapters is from files; this is what it does with their tensors.
    """

    vllm_config: Any
    device: torch.device

    def start_adapter_update(self) -> None:
        """Forgets tensors of a hand-over that did not end."""
        self._tensors: dict[str, torch.Tensor] = {}

    def update_adapters(self, update_info: dict[str, list[tuple[str, torch.Tensor]]]) -> None:
        """Keeps `weights`, some of the tensors, until the end, under the names that they have in peft's files."""
        weights = update_info["weights"]
        self._tensors |= {f"base_model.model.{name.replace('.default.', '.')}": tensor for name, tensor in weights}

    def finish_adapter_update(self) -> None:
        """Puts all of them in use.

        Raises:
            HandoverError: vLLM has no layer for some of them, which it would only leave out.
        """
        from vllm.lora.lora_model import LoRAModel
        from vllm.lora.peft_helper import PEFTHelper

        rank = next(len(tensor) for name, tensor in self._tensors.items() if ".lora_A." in name)
        options = PEFTHelper(rank, self.vllm_config.additional_config[ALPHA], target_modules=[])
        manager = self.model_runner.lora_manager._adapter_manager
        names = getattr(manager.model, "hf_to_vllm_mapper", None)
        adapters = LoRAModel.from_lora_tensors(
            ADAPTER_ID,
            self._tensors,
            options,
            device=str(self.device),
            dtype=manager.lora_config.lora_dtype,
            weights_mapper=None if names is None else names.get_rename_mapper(),
        )
        manager.remove_adapter(ADAPTER_ID)
        manager.add_adapter(adapters)
        unknown = sorted(adapters.loras.keys() - manager.modules.keys())
        if unknown:
            raise HandoverError(f"vLLM has no layer {unknown[0]!r} that takes adapters; leave it out of lora.targets")
        manager.activate_adapter(ADAPTER_ID)
        self.start_adapter_update()


def _add_adapter(
    wrapper: Any,
    y: torch.Tensor,
    x: torch.Tensor,
    a_stacked: tuple[torch.Tensor, ...],
    b_stacked: tuple[torch.Tensor, ...],
    scale: float,
    output_slices: tuple[int, ...],
) -> None:
    """Adds scale B A x to y in place, for each of the layers that vLLM has made one.

    Args:
        wrapper: knows whether the batch's requests name an adapter; all do or none.
        y: [T, sum of O]; x: [T, I].
        a_stacked: [1, 1, R, I] each; b_stacked: [1, 1, O, R] each; zeros where a layer has no adapter.
        output_slices: O of each.
    """
    if wrapper.no_lora:
        return
    for a, b, part in zip(a_stacked, b_stacked, y.split(output_slices, dim=-1), strict=True):
        part.addmm_(x @ a[0, 0].t(), b[0, 0].t(), alpha=scale)
