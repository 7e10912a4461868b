"""Whole weights in the vLLM process: a backend of vLLM's weight-transfer interface.

vLLM's own backends need a GPU, for NCCL or CUDA IPC; this one takes tensors that the process already holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload


@dataclass
class NothingToInitialize(WeightTransferInitInfo):  # type: ignore[misc]
    """Both sides share memory from the start of the process."""


@dataclass
class Weights(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Some of a hand-over's tensors, which may be kept until its end."""

    weights: list[tuple[str, torch.Tensor]]


class WeightReceiver(WeightTransferEngine):  # type: ignore[misc]
    """Replaces the weights of the running model in place.

    vLLM packs the weights after loading (oneDNN on CPU), so they go through its layer-wise reload: tensors are buffered
    until a layer is whole, then loaded, packed and copied to where the layer has them.
    """

    init_info_cls = NothingToInitialize
    update_info_cls = Weights

    def init_transfer_engine(self, init_info: NothingToInitialize) -> None:
        """Does nothing."""

    def start_weight_update(self) -> None:
        """Prepares every layer for new weights."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, list[tuple[str, torch.Tensor]]]) -> None:
        """Loads `weights`, whose bytes are there already; vLLM's own would wait for a device that a CPU has not."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: Weights) -> None:
        """Loads some of the weights."""
        with torch.no_grad():
            self.model.load_weights(iter(update_info.weights))

    def finish_weight_update(self) -> None:
        """Finishes the layers that are still open."""
        with torch.no_grad():
            finalize_layerwise_reload(self.model, self.model_config)
            # A head tied to the embedding receives no weights of its own, so its packed copy would stay stale.
            for layer in self.model.modules():
                if isinstance(layer, ParallelLMHead) and self.model_config.hf_config.tie_word_embeddings:
                    layer.quant_method.process_weights_after_loading(layer)

    def shutdown(self) -> None:
        """Holds nothing."""
