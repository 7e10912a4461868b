"""The process that holds the vLLM engine; `VllmEngine` starts it and sends it commands over a socket.

vLLM's engine core runs inside this process: on CPU its own two child processes take 15 s longer to start and poll each
other on the cores that decode. Here the threads and the environment are vLLM's alone, and the trainer's stay clean.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from rlvr.allocator import give_back_freed_memory, keep_freed_memory
from rlvr.errors import HandoverError
from rlvr.rollout import vllm_adapters, vllm_kernels
from rlvr.rollout.engine import Request, Sampling
from rlvr.rollout.vllm_messages import CPU_BLOCK_TOKENS, CPU_PREFILL_TOKENS, Bucket, Sample, Settings, fingerprint

# Commands of vLLM's worker for the parts of a hand-over: its own, and AdapterReceiver's.
WEIGHTS = ("start_weight_update", "update_weights", "finish_weight_update")
ADAPTERS = ("start_adapter_update", "update_adapters", "finish_adapter_update")
BACKEND = "rlvr"  # our name in vLLM's table of weight-transfer backends


class _Server:
    """Answers one command after another: `("result", value)`, `("handover error", message)` or `("error", message)`."""

    def __init__(self, connection: Connection, shared_memory: int, settings: Settings) -> None:
        self._connection = connection
        self._shared_memory = shared_memory
        self._dtype: torch.dtype = getattr(torch, settings.dtype)
        self._has_adapters = settings.lora.rank > 0
        self._on_cpu = _on_cpu()
        self._version = -1
        self._adapters: Any = None  # vLLM's request for them; None before they came
        self._start_update, self._update, self._finish_update = ADAPTERS if self._has_adapters else WEIGHTS
        self._receiving = False
        self._engine = _start(settings)

    def run(self) -> None:
        self._connection.send(("result", None))
        while True:
            command, arguments = self._connection.recv()
            try:
                value = getattr(self, command)(*arguments)
            except HandoverError as error:
                self._connection.send(("handover error", str(error)))
            except Exception as error:
                traceback.print_exc()
                self._connection.send(("error", f"{type(error).__name__}: {error}"))
                return  # vLLM's scheduler does not recover from a failed step
            else:
                self._connection.send(("result", value))

    def generate(self, requests: list[Request], sampling: Sampling, stop_token_ids: list[int]) -> None:
        """Sends `("group", (index, version, samples))` as each request finishes; any command meanwhile stops it."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        for index, request in enumerate(requests):
            for number, seed in enumerate(request.seeds):
                params = SamplingParams(
                    temperature=sampling.temperature,
                    top_p=sampling.top_p,
                    max_tokens=sampling.max_new_tokens,
                    seed=seed,
                    stop_token_ids=stop_token_ids,
                    ignore_eos=True,  # the tokenizer's end is among the stop tokens; vLLM's own idea of it is not asked
                    logprobs=sampling.topk,
                    flat_logprobs=True,
                    detokenize=False,
                    output_kind=RequestOutputKind.FINAL_ONLY,
                )
                prompt = {"prompt_token_ids": request.token_ids}
                self._engine.add_request(f"{index}/{number}", prompt, params, lora_request=self._adapters)
        samples: dict[int, dict[int, Sample]] = {index: {} for index in range(len(requests))}
        running = {f"{index}/{number}" for index, r in enumerate(requests) for number in range(len(r.seeds))}
        while running:
            if self._connection.poll():
                self._engine.abort_request(list(running))
                return
            for output in self._engine.step():
                running.discard(output.request_id)
                index, number = map(int, output.request_id.split("/"))
                samples[index][number] = _sample(output, sampling.topk)
                if len(samples[index]) == len(requests[index].seeds):
                    group = samples.pop(index)
                    ordered = [group[number] for number in sorted(group)]
                    self._connection.send(("group", (index, self._version, ordered)))

    def stop(self) -> None:
        """Does nothing: that it came has ended `generate`."""

    def logprobs(self, sequences: list[list[int]]) -> list[list[float]]:
        """Log-prob of each token given those before it."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, flat_logprobs=True, detokenize=False)
        for index, sequence in enumerate(sequences):
            prompt = {"prompt_token_ids": sequence}
            self._engine.add_request(str(index), prompt, params, lora_request=self._adapters)
        values: dict[int, list[float]] = {}
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                values[int(output.request_id)] = list(output.prompt_logprobs.logprobs)
        return [values[index] for index in range(len(sequences))]

    def begin_weights(self) -> None:
        """First part of a hand-over."""
        if self._receiving and not self._has_adapters:
            self._engine.collective_rpc(self._finish_update)  # vLLM starts none while another, which broke off, is open
        self._engine.collective_rpc(self._start_update)
        self._receiving = True

    def receive_weights(self, bucket: Bucket) -> None:
        """Takes a bucket over; it may be overwritten afterwards."""
        if bucket.cuda_handle is not None:
            from torch.multiprocessing.reductions import rebuild_cuda_tensor

            memory = rebuild_cuda_tensor(*bucket.cuda_handle)
        else:
            memory = torch.frombuffer(mmap.mmap(self._shared_memory, bucket.num_bytes), dtype=torch.uint8)
        weights = []
        for slot in bucket.slots:
            size = self._dtype.itemsize
            for length in slot.shape:
                size *= length
            tensor = memory[slot.offset : slot.offset + size].clone().view(self._dtype).view(slot.shape)
            if fingerprint(tensor) != slot.fingerprint:
                raise HandoverError(f"tensor {slot.name!r} reached the vLLM process with other bits than were sent")
            weights.append((slot.name, tensor))
        self._engine.collective_rpc(self._update, args=({"weights": weights},))

    def end_weights(self, version: int) -> None:
        """Last part of a hand-over: the weights are in use from here on."""
        self._engine.collective_rpc(self._finish_update)
        self._receiving = False
        if self._has_adapters:
            self._adapters = vllm_adapters.request()
        if not self._engine.reset_prefix_cache():
            raise HandoverError("vLLM kept key/value blocks of the old weights in its prefix cache")
        self._version = version

    def sleep(self) -> None:
        """Gives the cache back, on a GPU also the weights; those that are not handed over wait in the host's memory."""
        if self._on_cpu:
            self._engine.reset_prefix_cache()
            self._engine.collective_rpc("discard_cache")
            give_back_freed_memory()
        else:
            self._engine.sleep(level=1 if self._has_adapters else 2)

    def wake(self) -> None:
        """Takes device memory again; the weights are undefined until the next hand-over."""
        if not self._on_cpu:
            self._engine.wake_up()


def _sample(output: Any, topk: int) -> Sample:
    """A finished request; at each position vLLM gives the sampled token's log-prob first, then the likeliest ones."""
    one = output.outputs[0]
    width = topk + 1
    logprobs, ids = one.logprobs.logprobs, one.logprobs.token_ids
    return Sample(
        list(one.token_ids),
        list(logprobs[::width]),
        one.finish_reason,
        output.num_cached_tokens or 0,
        np.array(ids, np.int32).reshape(-1, width)[:, 1:] if topk else None,
        np.array(logprobs, np.float32).reshape(-1, width)[:, 1:] if topk else None,
    )


def _on_cpu() -> bool:
    """Whether vLLM was built for it."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def _start(settings: Settings) -> Any:
    from vllm import EngineArgs
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory
    from vllm.v1.engine.llm_engine import LLMEngine

    started = time.monotonic()
    arguments: dict[str, Any] = {"worker_extension_cls": "rlvr.rollout.vllm_cache.CacheHolder"}
    if _on_cpu():
        # A prompt prefilled in chunks makes vLLM step its sampler's generator back by an offset, which CPU generators
        # do not have ("CPU Generator does not use offset"); whole prompts never need it, so seeds work.
        arguments["enable_chunked_prefill"] = False
        arguments["max_num_batched_tokens"] = max(settings.max_model_len, CPU_PREFILL_TOKENS)
        arguments["block_size"] = CPU_BLOCK_TOKENS
        vllm_kernels.draw_by_inverse_transform()
        if not settings.compile:
            arguments |= vllm_kernels.arguments()
    else:
        arguments["gpu_memory_utilization"] = settings.gpu_memory
        arguments["enable_sleep_mode"] = settings.sleep
        arguments["hf_overrides"] = {"head_dtype": "float32"}  # as the policy's; on CPU it would be cast every step
    if settings.lora.rank:
        arguments |= vllm_adapters.arguments(settings.lora)
    else:
        WeightTransferEngineFactory.register_engine(BACKEND, "rlvr.rollout.vllm_weights", "WeightReceiver")
        arguments["weight_transfer_config"] = {"backend": BACKEND}
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=settings.model_path,
            revision=settings.revision,
            dtype=settings.dtype,
            skip_tokenizer_init=True,
            max_model_len=settings.max_model_len,
            max_num_seqs=settings.max_num_seqs,
            kv_cache_memory_bytes=settings.cache_bytes,
            enable_prefix_caching=True,
            enforce_eager=not settings.compile,
            logprobs_mode="processed_logprobs",
            max_logprobs=-1,
            generation_config="vllm",
            disable_log_stats=True,
            **arguments,
        )
    )
    print(f"vLLM engine ready after {time.monotonic() - started:.1f} s", flush=True)
    return engine


def main() -> None:
    """Runs until the socket closes: `python -m rlvr.rollout.vllm_worker SOCKET MEMORY`, both file descriptors."""
    keep_freed_memory()
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    connection = Connection(int(sys.argv[1]))
    try:
        _Server(connection, int(sys.argv[2]), connection.recv()).run()
    except (EOFError, ConnectionError):
        # vLLM's own end of the process was seen to spin for ever when the trainer had been killed.
        os._exit(0)


def _end_with_parent(parent: int) -> None:
    """A trainer that was killed leaves no sampler behind, whatever it was doing."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main()
