"""The rollout engine without vLLM: transformers models, decoded in batches by a sampling loop of our own.

B rows (samples) in the batch, P prompts, T tokens so far, H key/value heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from rlvr.errors import ModelError
from rlvr.records import Completion, FinishReason
from rlvr.rollout import decode_attention
from rlvr.rollout.engine import Request, Sampling
from rlvr.rollout.handover import checked, refuse_half_loaded
from rlvr.rollout.sampling import check_length, sample, uniforms

PREFILL_TOKENS = 8192  # most tokens in one prefill forward


@dataclass
class _Row:
    """One sample on its way."""

    request: int
    sample: int
    seed: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason = "length"
    topk_ids: NDArray[np.int32] | None = None
    topk_logprobs: NDArray[np.float32] | None = None


class HfEngine:
    """Samples from a transformers model in this process.

    Each sample's random numbers come from its own seed, so batch size and order do not change them; the logits may
    differ in their last bits with the shape of the batch. The same requests in the same order repeat bit for bit.

    Args:
        model: a causal language model with full attention; may be the policy's own module (no second copy).
        tokenizer: its tokenizer; the end-of-sequence token ends a completion.
        max_num_seqs: most rows decoded at once.

    Raises:
        ModelError: the model has sliding-window or other layers that the batch decoder does not know.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_num_seqs: int = 256) -> None:
        kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise ModelError(f"rollout.engine='hf' decodes full attention only, the model has {kinds}: use engine=vllm")
        self._model = model
        self._tokenizer = tokenizer
        self._max_num_seqs = max_num_seqs
        # torch's own kernel is the faster one on a GPU only.
        self._attention = decode_attention.NAME if model.device.type == "cpu" else "sdpa"
        decode_attention.register()
        self._version = -1
        self._whole = True  # False while and after a hand-over that did not end

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, list[Completion]]]:
        """See `RolloutEngine.generate`.

        Raises:
            ConfigError: a prompt and its completion would not fit the model's context.
            HandoverError: the last hand-over did not end.
        """
        refuse_half_loaded(self._whole)
        check_length(requests, sampling, self._model.config.max_position_embeddings)
        # Prompts of like length together: less padding when there are several batches.
        order = sorted(range(len(requests)), key=lambda i: len(requests[i].token_ids))
        rows = [_Row(i, j, seed) for i in order for j, seed in enumerate(requests[i].seeds)]
        done: dict[int, list[_Row]] = {i: [] for i in order}
        for i in order:
            if not requests[i].seeds:
                yield i, []
        for start in range(0, len(rows), self._max_num_seqs):
            batch = rows[start : start + self._max_num_seqs]
            for row in self._decode(batch, requests, sampling):
                done[row.request].append(row)
                if len(done[row.request]) == len(requests[row.request].seeds):
                    yield row.request, self._completions(done.pop(row.request))

    def logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `RolloutEngine.logprobs`; one sequence at a time, so nothing is padded."""
        values: list[list[float]] = []
        with _sampling_mode(self._model, "sdpa"), torch.no_grad():
            for sequence in sequences:
                ids = torch.tensor([list(sequence)], device=self._model.device)
                logprobs = self._model(input_ids=ids, use_cache=False).logits[0, :-1].float().log_softmax(-1)
                values.append(logprobs.gather(-1, ids[0, 1:, None]).squeeze(-1).tolist())
        return values

    @torch.no_grad()
    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """See `RolloutEngine.load_weights`. Tied weights may come under either name or both.

        Raises:
            HandoverError: a name or shape that the model does not have, or a parameter that never came.
        """
        self._whole = False
        parameters = dict(self._model.named_parameters())
        for name, tensor in checked(weights, self._model, version):
            if parameters[name].data_ptr() != tensor.data_ptr():
                parameters[name].copy_(tensor)
        self._version = version
        self._whole = True

    def sleep(self) -> None:
        """Nothing to free: the cache lives for one batch only."""

    def wake(self) -> None:
        """Nothing to take back."""

    def close(self) -> None:
        """Nothing was started."""

    def _completions(self, rows: list[_Row]) -> list[Completion]:
        rows.sort(key=lambda row: row.sample)
        texts = self._tokenizer.batch_decode([row.token_ids for row in rows], skip_special_tokens=True)
        return [
            Completion(r.token_ids, r.logprobs, text, r.finish_reason, self._version, r.topk_ids, r.topk_logprobs)
            for r, text in zip(rows, texts, strict=True)
        ]

    @torch.no_grad()
    def _decode(self, rows: list[_Row], requests: Sequence[Request], sampling: Sampling) -> Iterator[_Row]:
        """Decodes one batch and yields each row as it finishes; finished rows leave the batch."""
        device = self._model.device
        stop = torch.tensor(sampling.ends(self._tokenizer.eos_token_id), dtype=torch.long, device=device)
        uniform = uniforms([row.seed for row in rows], sampling.max_new_tokens).to(device)
        tokens = torch.zeros(len(rows), sampling.max_new_tokens, dtype=torch.long, device=device)
        logprobs = torch.zeros(len(rows), sampling.max_new_tokens, device=device)
        topk = _TopK(len(rows), sampling, self._model.config.vocab_size, device) if sampling.topk else None
        live = torch.arange(len(rows), device=device)  # slot in the batch -> row
        with _sampling_mode(self._model, self._attention):
            logits, batch = self._prefill(rows, requests, sampling.max_new_tokens)
        for step in range(sampling.max_new_tokens):
            drawn, all_logprobs = sample(logits, uniform[live, step], sampling)
            tokens[live, step] = drawn
            logprobs[live, step] = all_logprobs.gather(-1, drawn[:, None]).squeeze(-1)
            if topk is not None:
                topk.add(live, step, all_logprobs)
            stopped = torch.isin(drawn, stop)
            finished = stopped if step + 1 < sampling.max_new_tokens else torch.ones_like(stopped)
            if finished.any():
                for slot in finished.nonzero().squeeze(-1).tolist():
                    index = int(live[slot])
                    row = rows[index]
                    row.token_ids = tokens[index, : step + 1].tolist()
                    row.logprobs = logprobs[index, : step + 1].tolist()
                    row.finish_reason = "stop" if stopped[slot] else "length"
                    if topk is not None:
                        row.topk_ids, row.topk_logprobs = topk.of(index, step + 1)
                    yield row
                if finished.all():
                    return
                kept = batch.drop(finished)
                live, drawn = live[kept], drawn[kept]
            with _sampling_mode(self._model, self._attention):
                logits = batch.forward(self._model, drawn)

    def _prefill(
        self, rows: list[_Row], requests: Sequence[Request], max_new_tokens: int
    ) -> tuple[torch.Tensor, _Batch]:
        """Runs each prompt once; its cache is copied to all its rows.

        Returns:
            Logits of the first new token `[B, V]` and the batch to go on with.
        """
        device = self._model.device
        unique = sorted({row.request for row in rows})
        longest = max(len(requests[i].token_ids) for i in unique)
        batch = _Batch(len(rows), longest, max_new_tokens, device, self._model.dtype)
        logits: torch.Tensor | None = None
        per_chunk = max(1, PREFILL_TOKENS // longest)
        for start in range(0, len(unique), per_chunk):
            chunk = {request: k for k, request in enumerate(unique[start : start + per_chunk])}
            ids = torch.zeros(len(chunk), longest, dtype=torch.long, device=device)
            padding = torch.zeros(len(chunk), dtype=torch.long, device=device)
            for request, k in chunk.items():
                prompt = requests[request].token_ids
                padding[k] = longest - len(prompt)
                ids[k, longest - len(prompt) :] = torch.tensor(prompt, device=device)
            cache = DynamicCache()
            out = self._model(
                input_ids=ids,
                attention_mask=_causal_mask(padding, longest, self._model.dtype),
                position_ids=(torch.arange(longest, device=device) - padding[:, None]).clamp(min=0),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, 0]
            slots = [slot for slot, row in enumerate(rows) if row.request in chunk]
            source = torch.tensor([chunk[rows[slot].request] for slot in slots], device=device)
            batch.fill(torch.tensor(slots, device=device), source, cache, padding)
            if logits is None:
                logits = out.new_empty(len(rows), out.shape[-1])
            logits[slots] = out[source]
        assert logits is not None
        return logits, batch


class _TopK:
    """The likeliest tokens at each position of each row and their log-probs, `[B, T, K]`."""

    def __init__(self, num_rows: int, sampling: Sampling, vocabulary: int, device: torch.device) -> None:
        shape = (num_rows, sampling.max_new_tokens, min(sampling.topk, vocabulary))
        self._ids = torch.zeros(shape, dtype=torch.int32, device=device)
        self._logprobs = torch.zeros(shape, device=device)

    def add(self, rows: torch.Tensor, step: int, logprobs: torch.Tensor) -> None:
        """Of token `step` of these rows, from all log-probs `[b, V]`."""
        values, ids = logprobs.topk(self._ids.shape[-1])
        self._ids[rows, step], self._logprobs[rows, step] = ids.int(), values

    def of(self, row: int, num_tokens: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Copies for the row's first tokens."""
        return self._ids[row, :num_tokens].cpu().numpy().copy(), self._logprobs[row, :num_tokens].cpu().numpy().copy()


class _PreallocatedLayer(CacheLayerMixin):
    """Keys and values `[B, H, T, D]` in storage that is allocated once and filled from the left."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storage = (keys, values)
        self.is_initialized = True
        self.num_rows = len(keys)
        self.num_tokens = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        raise AssertionError("allocated when it was made")

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        start, end = self.num_tokens, self.num_tokens + key_states.shape[-2]
        keys, values = (storage[: self.num_rows, :, :end] for storage in self.storage)
        keys[:, :, start:], values[:, :, start:] = key_states, value_states
        self.num_tokens = end
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.num_tokens + query_length, 0

    def get_seq_length(self) -> int:
        return self.num_tokens

    def get_max_length(self) -> int:
        return self.storage[0].shape[-2]


class _Batch:
    """The rows being decoded: cache, padding mask and positions."""

    def __init__(
        self, num_rows: int, prompt_tokens: int, max_new_tokens: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._prompt_tokens = prompt_tokens
        self._max_tokens = prompt_tokens + max_new_tokens
        self._layers: list[_PreallocatedLayer] = []
        self._padding = torch.zeros(num_rows, dtype=torch.long, device=device)
        self._mask = torch.zeros(num_rows, 1, 1, self._max_tokens, dtype=dtype, device=device)

    def fill(self, slots: torch.Tensor, source: torch.Tensor, cache: DynamicCache, padding: torch.Tensor) -> None:
        """Copies row `source[k]` of a prefilled cache to row `slots[k]`."""
        for index, (keys, values, _) in enumerate(cache):
            if len(self._layers) == index:
                shape = (len(self._padding), keys.shape[1], self._max_tokens, keys.shape[3])
                self._layers.append(_PreallocatedLayer(keys.new_empty(shape), values.new_empty(shape)))
            own = self._layers[index]
            for storage, prefilled in zip(own.storage, (keys, values), strict=True):
                storage[slots, :, : self._prompt_tokens] = prefilled[source]
            own.num_tokens = self._prompt_tokens
        self._padding[slots] = padding[source]
        columns = torch.arange(self._max_tokens, device=padding.device)
        self._mask[slots, 0, 0] = _additive(columns >= padding[source, None], self._mask.dtype)

    def forward(self, model: PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
        """Appends one token `[B]` a row; returns the logits of the next `[B, V]`."""
        num_tokens = self._layers[0].num_tokens + 1
        positions = num_tokens - 1 - self._padding[:, None]
        out = model(
            input_ids=tokens[:, None],
            attention_mask=self._mask[..., :num_tokens],
            position_ids=positions,
            past_key_values=Cache(layers=[*self._layers]),
            use_cache=True,
        )
        logits: torch.Tensor = out.logits[:, -1]
        return logits

    def drop(self, finished: torch.Tensor) -> torch.Tensor:
        """Moves live rows from the end into the places of finished ones, at most one copy a finished row.

        Returns:
            For each slot that is left, the slot its row was in before.
        """
        num_live = int((~finished).sum())
        kept = torch.arange(num_live, device=finished.device)
        holes = finished[:num_live].nonzero().squeeze(-1)
        movers = (~finished[num_live:]).nonzero().squeeze(-1) + num_live
        kept[holes] = movers
        for layer in self._layers:
            for storage in layer.storage:
                storage[holes, :, : layer.num_tokens] = storage[movers, :, : layer.num_tokens]
            layer.num_rows = num_live
        self._padding, self._mask = self._padding[kept], self._mask[kept]
        return kept


class _sampling_mode:  # noqa: N801 - a context manager
    """Evaluation mode and an attention for one forward: a shared policy may train and attend in packed form."""

    def __init__(self, model: PreTrainedModel, attention: str) -> None:
        self._model = model
        self._sampling_attention = attention
        self._training = model.training
        self._attention = model.config._attn_implementation

    def __enter__(self) -> None:
        if self._training:
            self._model.eval()
        self._model.config._attn_implementation = self._sampling_attention

    def __exit__(self, *error: object) -> None:
        self._model.config._attn_implementation = self._attention
        if self._training:
            self._model.train()


def _additive(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where allowed, the lowest finite number elsewhere: -inf would make rows of padding NaN."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill(~allowed, torch.finfo(dtype).min)


def _causal_mask(padding: torch.Tensor, num_tokens: int, dtype: torch.dtype) -> torch.Tensor:
    """`[P, 1, T, T]` additive mask of left-padded prompts; `padding` is `[P]`."""
    columns = torch.arange(num_tokens, device=padding.device)
    allowed = (columns <= columns[:, None]) & (columns >= padding[:, None, None])
    return _additive(allowed, dtype)[:, None]
