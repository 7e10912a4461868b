from pathlib import Path

import pytest

from rlvr.config import CriticConfig, LoraConfig, ModelConfig, PolicyConfig
from rlvr.policy.reference import Reference
from rlvr.policy.trainer import Policy

from .examples import write_tiny_llama
from .training import MakePolicy


@pytest.fixture
def make(tmp_path: Path) -> MakePolicy:
    """Policies that start from one tiny model; `critic`: its backbone."""
    path = write_tiny_llama(tmp_path / "model")

    def make(
        *,
        critic: str | None = None,
        reference: Reference | None = None,
        lora: LoraConfig | None = None,
        **options: object,
    ) -> Policy:
        given = {"dtype": "float32", "device": "cpu", "learning_rate": 1e-3, "logprob_chunk_tokens": 16, **options}
        return Policy(
            ModelConfig(path=path),
            PolicyConfig(**given),
            lora=lora,
            total_updates=100,
            temperature=0.8,
            seed=1,
            reference=reference,
            critic=CriticConfig(backbone=critic, learning_rate=1e-2) if critic else None,
        )

    return make
