"""`rlvr eval model=PATH data=NAME k=[1,8]`: how good a model is on a data set, as a table and as JSON."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from rlvr.commands.compose import YamlSource, compose, spelled_out
from rlvr.config import (
    DataConfig,
    EvalConfig,
    Fraction,
    ModelConfig,
    NonNegative,
    Positive,
    RolloutConfig,
    ScoringConfig,
)
from rlvr.config_checks import check_samples
from rlvr.errors import ConfigError
from rlvr.evaluate import EvalResult, evaluate, write_json
from rlvr.observe.console import Console, counted
from rlvr.validation import STRICT, flat_fields, validate
from rlvr.verifiers.registry import check, verifier_options

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TINY = "tiny"  # the embedded model, which exists only inside a run
USAGE = "rlvr eval model=PATH data=NAME [k=[1,8]] [samples=8] [engine=vllm] [key=value ...]"


@dataclass(frozen=True)
class EvalRunConfig:
    """One evaluation."""

    __pydantic_config__ = STRICT

    k: list[Positive] = field(default_factory=lambda: [1])
    """The k of pass@k and maj@k; each at most `samples`."""
    samples: Positive = 1
    """Completions per prompt."""
    temperature: Annotated[float, Field(ge=0)] = 1.0
    """Sampling temperature; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus."""
    max_new_tokens: Positive = 512
    """Longest completion, in tokens."""
    engine: Literal["hf", "vllm"] = "hf"
    """`vllm`, or `hf`: transformers in batches, for machines without vLLM."""
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Precision of the weights and arithmetic."""
    max_num_seqs: Positive = 256
    """Most completions sampled at once."""
    gpu_memory: Fraction = 0.9
    """Share of the GPU's memory that vLLM may take."""
    seed: NonNegative = 0
    """Seed of sampling and of the bootstrap intervals."""
    output: str = "eval.json"
    """File that receives the figures as JSON."""
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    verifier: dict[str, dict[str, Any]] = field(default_factory=lambda: {"math": {}})
    """Verifiers by name, each with its own options; several are combined as a weighted sum."""
    scoring: ScoringConfig = field(default_factory=ScoringConfig)

    @property
    def rollout(self) -> RolloutConfig:
        """The engine's options."""
        return RolloutConfig(
            engine=self.engine,
            max_new_tokens=self.max_new_tokens,
            top_p=self.top_p,
            dtype=self.dtype,
            max_num_seqs=self.max_num_seqs,
            gpu_memory=self.gpu_memory,
            sleep=False,
        )

    @property
    def sampling(self) -> EvalConfig:
        """What is sampled and reported."""
        return EvalConfig(samples=self.samples, k=self.k, temperature=self.temperature, top_p=self.top_p)


def main(argv: list[str]) -> int:
    """Runs `rlvr eval`.

    Raises:
        RlvrError: a wrong option, no such model, no such data.
    """
    parser = argparse.ArgumentParser(prog="rlvr eval", usage=USAGE, add_help=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--config-dir", type=Path)
    arguments = parser.parse_intermixed_args(argv)
    source = YamlSource(primary="eval", options=EvalRunConfig, config_dir=arguments.config_dir)
    if arguments.help:
        print(usage(source))
        return 0
    config = eval_run_config(arguments.overrides, source)
    output = Path(config.output)
    if output.is_dir():
        raise ConfigError("output", config.output, "is a folder; name a file, as eval.json")
    console = Console()
    result = run(config, console)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_json(output, result)
    for line in table(result):
        console.say(line)
    console.say(f"written to {output}")
    return 0


def eval_run_config(overrides: list[str], source: YamlSource) -> EvalRunConfig:
    """The options of a command line.

    Raises:
        ConfigError: no model or data, an unknown choice, or a wrong key or value.
    """
    overrides = [spelled_out(text, ("model", "data"), source) for text in overrides]
    for group, what in (("model", "a model folder or hub id"), ("data", "a data set")):
        if not any(text.startswith((f"{group}=", f"{group}.path=")) for text in overrides):
            known = ", ".join(source.choices(group))
            raise ConfigError(group, None, f"name {what}: {group}=PATH, or one of {known}")
    composed = compose(overrides, source)
    if not any(key.startswith("rollout.") and origin == "command line" for key, origin in composed.origins.items()):
        composed.values.pop("rollout", None)  # for the verifiers' files alone
    config = validate(EvalRunConfig, composed.values)
    check_samples(config.sampling)
    check(config.verifier, config.scoring.deadline_seconds)
    if config.model.path == TINY:
        raise ConfigError("model", TINY, "is made anew by each run; name the folder that `rlvr export` wrote")
    return config


def run(config: EvalRunConfig, console: Console) -> EvalResult:
    """Loads model and data, samples, scores.

    Raises:
        RlvrError: data, model or engine cannot be used.
    """
    from rlvr.data.prompts import load_prompts
    from rlvr.data.templates import ChatTemplate
    from rlvr.policy.model import load_tokenizer
    from rlvr.rollout.factory import build_engine
    from rlvr.scoring import Scorer

    model = config.model
    with ExitStack() as stack:
        # Started first: the workers import their libraries while the model loads.
        scorer = stack.enter_context(Scorer(config.verifier, config.scoring.workers, config.scoring.deadline_seconds))
        tokenizer = load_tokenizer(model)
        prompts, report = load_prompts(config.data, ChatTemplate(tokenizer, model.chat_template))
        console.say(report.summary())
        for warning in report.warnings():
            console.warn(warning)
        longest = max(len(prompt.token_ids) for prompt in prompts)
        engine = build_engine(config.rollout, model, tokenizer, longest, _module(config))
        stack.callback(engine.close)
        with console.progress("evaluate", len(prompts)) as advance:
            return evaluate(
                engine, scorer, prompts, config.sampling, config.max_new_tokens, config.seed, step=0, advance=advance
            )


def _module(config: EvalRunConfig) -> PreTrainedModel | None:
    """The model for the `hf` engine, on the GPU when there is one; vLLM loads its own."""
    if config.engine != "hf":
        return None
    import torch

    from rlvr.policy.model import load_model

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return load_model(config.model, getattr(torch, config.dtype), device).module


def usage(source: YamlSource) -> str:
    """The text of `rlvr eval --help`."""
    keys = [*flat_fields(EvalRunConfig), *verifier_options()]
    rows = [f"  {key:<26} {meaning} [{'???' if default is MISSING else default}]" for key, _, default, meaning in keys]
    choices = [f"{group}= takes a path or one of: {', '.join(source.choices(group))}" for group in ("model", "data")]
    flag = "--config-dir DIR: more choices for model=, data= and verifier=, laid out as DIR/data/mine.yaml"
    return "\n".join([f"usage: {USAGE}", "", *choices, flag, "", *rows])


def table(result: EvalResult) -> list[str]:
    """The figures as aligned lines."""
    lines = [
        f"{counted(result.num_prompts, 'prompt')} x {counted(result.num_samples, 'sample')}, "
        f"temperature {result.temperature:g}, top_p {result.top_p:g}",
        f"  {'':<10}{'value':>8}   95% interval",
    ]
    for name in result.names:
        value, low, high = result.interval(name)
        short = f"   ({counted(result.num_short[name], 'prompt')} left out)" if name in result.num_short else ""
        lines.append(f"  {name:<10}{value:>8.1%}   {low:.1%} to {high:.1%}{short}")
    lines.append(f"  length {result.mean_length:.1f} tokens, {result.truncated:.1%} cut off")
    faults = ", ".join(f"{status} {count}" for status, count in result.faults.items() if count)
    if faults:
        lines.append(f"  left out as faults of verifier or data: {faults}")
    return lines
