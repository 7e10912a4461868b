"""Log-probs and entropies of sampled tokens, forward and backward: rlvr's ways beside the plain one and liger-kernel's.

    .venv/bin/python scripts/bench/logprobs.py --json logprobs.json

One fresh process a contender: medians of five calls after one that does not count, and the memory that the calls took
beyond their inputs. plain: all logits at once, by autograd. chunked: torch on a chunk at a time. triton: the same with
kernels, CUDA only. liger: its fused linear cross-entropy, if it is installed; CUDA only, no entropies, gradients
computed in forward. Floors: the matrix products (2 operations a token, hidden unit and token of the vocabulary forward,
6 backward, where the logits are computed again) over the matrix rate; for the kernels alone, on one chunk, the bytes
they must read and write over the bandwidth.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import floors
import psutil
import torch
from qwen import SHAPES
from torch import Tensor

from rlvr.policy.logprobs import ChunkedTokenLogprobs, Head

MIB = 2**20
CALLS = 5
TOKENS = {"cuda": 8192, "cpu": 512}
Values = tuple[Tensor, Tensor]
Contender = Callable[[Tensor, Tensor, Tensor, Head], Values]


def plain(hidden: Tensor, weight: Tensor, targets: Tensor, head: Head) -> Values:
    all_logprobs = (hidden @ weight.t()).float().log_softmax(-1)
    logprobs = all_logprobs.gather(-1, targets[:, None]).squeeze(-1)
    return logprobs, -(all_logprobs.exp() * all_logprobs).sum(-1)


def chunked(hidden: Tensor, weight: Tensor, targets: Tensor, head: Head) -> Values:
    values: Values = ChunkedTokenLogprobs.apply(hidden, weight, targets, head, False)
    return values


def triton(hidden: Tensor, weight: Tensor, targets: Tensor, head: Head) -> Values:
    from rlvr.policy.logprobs_triton import FusedTokenLogprobs

    values: Values = FusedTokenLogprobs.apply(hidden, weight, targets, head, False)
    return values


def liger(hidden: Tensor, weight: Tensor, targets: Tensor, head: Head) -> Values:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    loss = LigerFusedLinearCrossEntropyLoss(reduction="sum")(weight, hidden, targets)
    return -loss, loss.detach()


CONTENDERS: dict[str, Contender] = {
    "plain": plain,
    "chunked": chunked,
    "triton": triton,
    "liger": liger,
}


def can_run(name: str, device: str) -> bool:
    module = {"triton": "triton", "liger": "liger_kernel"}.get(name)
    return module is None or (device == "cuda" and importlib.util.find_spec(module) is not None)


def measure(name: str, shape: str, tokens: int, chunk: int, device: str) -> dict[str, float]:
    """Seconds of `forward` and `backward`, and `peak_mib`, of one contender in this process."""
    hidden, weight, targets = inputs(shape, tokens, device)
    own = name in ("chunked", "triton")
    head = Head(weight, chunk_tokens=chunk, weight_grad=torch.ones(weight.shape, device=device) if own else None)
    before = bytes_in_use(device)
    times = []
    for _ in range(CALLS + 1):
        hidden.grad = weight.grad = None
        times.append(forward_and_backward(CONTENDERS[name], hidden, weight, targets, head))
    forward, backward = (median(of) for of in zip(*times[1:], strict=True))
    return {"forward": forward, "backward": backward, "peak_mib": (peak_bytes(device) - before) / MIB}


def forward_and_backward(contender: Contender, *given: Any) -> tuple[float, float]:
    """Seconds of each."""
    values: list[Values] = []
    forward = floors.seconds_of(lambda: values.append(contender(*given)))
    loss = values.pop()[0].sum()
    return forward, floors.seconds_of(loss.backward)


def measure_kernels(shape: str, chunk: int) -> dict[str, float]:
    """Seconds of each Triton kernel alone on one chunk."""
    from rlvr.policy.logprobs_triton import differentiate, reduce

    _, weight, targets = inputs(shape, chunk, "cuda")
    products = torch.randn(chunk, len(weight), device="cuda")
    logprobs, entropy, normalizers = (torch.empty(chunk, device="cuda") for _ in range(3))
    head, up = Head(weight), torch.ones(chunk, device="cuda")

    def backward() -> None:
        differentiate(products, targets, head, entropy, normalizers, up, None, torch.bfloat16)

    return {
        "forward": floors.best(lambda: reduce(products, targets, head, logprobs, entropy, normalizers), CALLS),
        "backward": floors.best(backward, CALLS),
    }


def inputs(shape: str, tokens: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, head weight and targets as a model's are, in bfloat16."""
    torch.manual_seed(0)
    hidden = torch.randn(tokens, SHAPES[shape].hidden, device=device, dtype=torch.bfloat16)
    weight = torch.randn(SHAPES[shape].vocabulary, SHAPES[shape].hidden, device=device, dtype=torch.bfloat16)
    targets = torch.randint(SHAPES[shape].vocabulary, (tokens,), device=device)
    return hidden.requires_grad_(), weight.mul_(0.02).requires_grad_(), targets


def bytes_in_use(device: str) -> int:
    """By tensors on the GPU, or by the process."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    return psutil.Process().memory_info().rss


def peak_bytes(device: str) -> int:
    """The most that were in use at once; on the GPU since `bytes_in_use`, else ever."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def product_floors(shape: str, tokens: int, rates: floors.Rates) -> dict[str, float]:
    """Seconds of the matrix products."""
    once = 2 * tokens * SHAPES[shape].hidden * SHAPES[shape].vocabulary / rates.flops
    return {"forward": once, "backward": 3 * once}


def kernel_floors(shape: str, chunk: int, rates: floors.Rates) -> dict[str, float]:
    """Seconds of reading float32 logits once, and in backward of writing a bfloat16 gradient too."""
    entries = chunk * SHAPES[shape].vocabulary
    return {"forward": 4 * entries / rates.bandwidth, "backward": 6 * entries / rates.bandwidth}


def in_a_process(*arguments: str) -> dict[str, float] | None:
    """What this program prints when it is started with the arguments; None when that is too much for the memory."""
    command = [sys.executable, __file__, *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode == 0:
        answer: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
        return answer
    if "OutOfMemoryError" in result.stderr or "can't allocate memory" in result.stderr or result.returncode == -9:
        return None
    sys.exit(f"{result.stderr[-4000:]}\nlogprobs: {' '.join(arguments)} failed; see above")


def collect(shapes: list[str], tokens: int, chunk: int, device: str) -> dict[str, Any]:
    rates = floors.measure(device)
    report: dict[str, Any] = {
        "tokens": tokens,
        "chunk": chunk,
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "torch": version("torch"),
        "date": datetime.date.today().isoformat(),
        "rates": {"flops": rates.flops, "bandwidth": rates.bandwidth},
        "shapes": {},
    }
    for shape in shapes:
        size = ["--shapes", shape, "--tokens", str(tokens), "--chunk", str(chunk)]
        able = {name: can_run(name, device) for name in CONTENDERS}
        report["shapes"][shape] = {
            "product_floors": product_floors(shape, tokens, rates),
            "kernel_floors": kernel_floors(shape, chunk, rates),
            "contenders": {name: in_a_process("--only", name, *size) if able[name] else None for name in able},
            "kernels": in_a_process("--only", "kernels", *size) if able["triton"] else None,
        }
    return report


def table(report: dict[str, Any]) -> str:
    rates = report["rates"]
    lines = [
        f"{report['device']}: {rates['flops'] / 1e12:.2f} TFLOP/s in bfloat16, {rates['bandwidth'] / 1e9:.0f} GB/s; "
        f"{report['tokens']} tokens, chunks of {report['chunk']}",
        "",
        "| head | | forward ms | times its floor | backward ms | times its floor | peak MiB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for shape, of in report["shapes"].items():
        for name, found in of["contenders"].items():
            lines.append(row(shape, name, found, of["product_floors"]))
        lines.append(row(shape, "triton's kernels alone, one chunk", of["kernels"], of["kernel_floors"]))
    return "\n".join(lines)


def row(shape: str, name: str, found: dict[str, float] | None, least: dict[str, float]) -> str:
    if found is None:
        return f"| {shape} | {name} | not measured | | not measured | | |"
    cells = [shape, name]
    for part in ("forward", "backward"):
        cells += [f"{1000 * found[part]:.2f}", f"{found[part] / least[part]:.2f}"]
    cells.append(f"{found['peak_mib']:.0f}" if "peak_mib" in found else "")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    real = [name for name in SHAPES if name != "toy"]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=real if device == "cuda" else real[:1])
    parser.add_argument("--tokens", type=int, default=TOKENS[device])
    parser.add_argument("--chunk", type=int, default=1024, help="tokens whose logits exist at once")
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--only", choices=[*CONTENDERS, "kernels"], help="one contender, here and now, one JSON line")
    args = parser.parse_args()
    if args.only == "kernels":
        print(json.dumps(measure_kernels(args.shapes[0], args.chunk)))
        return
    if args.only:
        print(json.dumps(measure(args.only, args.shapes[0], args.tokens, args.chunk, device)))
        return
    report = collect(args.shapes, args.tokens, args.chunk, device)
    print(table(report))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
