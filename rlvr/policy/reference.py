"""The model that the KL terms hold the policy to: the start model, another one, or the policy of some steps ago."""

from __future__ import annotations

from pathlib import Path

from rlvr.config import ModelConfig
from rlvr.errors import ModelError
from rlvr.policy.model import CausalModel, WithoutAdapters, copy_weights, load_model

FOLDER = "reference"


class Reference:
    """Loaded when it is first read.

    Args:
        source: its Hugging Face folder or hub id.
        key: the option that names `source`, for errors.
        refresh_every: rollout batches after which it becomes the policy as it is then; 0: never.
        is_base: `source` is what the policy's adapters lie on: then it is the policy without them, and no second copy.
    """

    def __init__(
        self, source: ModelConfig, *, key: str = "model.path", refresh_every: int = 0, is_base: bool = False
    ) -> None:
        assert not (is_base and refresh_every), "the policy's base never changes"
        self._source, self._key, self._refresh_every, self._is_base = source, key, refresh_every, is_base
        self._model: CausalModel | None = None
        self._is_refreshed = False

    def model(self, policy: CausalModel) -> CausalModel:
        """The model, in the policy's precision and on its device, without gradients.

        Raises:
            ModelError: it cannot be used, or its vocabulary, or with `refresh_every` its layers, are not the policy's.
        """
        if self._is_base:
            return WithoutAdapters(policy.module, policy.softcap)
        if self._model is None:
            loaded = load_model(self._source, policy.module.dtype, policy.device, key=self._key)
            self._refuse_unlike(loaded, policy)
            loaded.module.requires_grad_(False)
            self._model = loaded
        return self._model

    def after_update(self, policy: CausalModel, num_batches: int) -> None:
        """Becomes the policy where it is time to; call after each batch whose objective reads the reference.

        Args:
            num_batches: rollout batches done, this one included.
        """
        if self._refresh_every and num_batches % self._refresh_every == 0:
            copy_weights(policy.module, self.model(policy).module)
            self._is_refreshed = True

    def save(self, folder: Path) -> None:
        """Writes the weights, unless they are still those of the source."""
        if self._is_refreshed and self._model is not None:
            self._model.module.save_pretrained(folder / FOLDER)

    def load(self, folder: Path, policy: CausalModel) -> None:
        """Goes on from `save`, bit for bit."""
        if (folder / FOLDER).is_dir():
            self._source, self._model, self._is_refreshed = ModelConfig(path=str(folder / FOLDER)), None, True
            self.model(policy)  # now: the checkpoint may be deleted before the next batch

    def _refuse_unlike(self, loaded: CausalModel, policy: CausalModel) -> None:
        sizes = [len(model.head_weight) for model in (loaded, policy)]
        if sizes[0] != sizes[1]:
            raise ModelError(
                f"{self._key}={self._source.path!r}: its vocabulary has {sizes[0]} tokens, the policy's {sizes[1]}; "
                "name a model with the policy's tokenizer"
            )
        shapes = [[parameter.shape for parameter in model.module.parameters()] for model in (loaded, policy)]
        if self._refresh_every and shapes[0] != shapes[1]:
            raise ModelError(
                f"{self._key}={self._source.path!r} is not of the policy's architecture, whose weights "
                f"reference.refresh_every={self._refresh_every} would copy into it: name a model like the policy, or "
                "set reference.refresh_every=0"
            )
