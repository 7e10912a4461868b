"""Every option of a run as typed dataclasses, its meaning under each; `config_checks` has what spans several.

The algorithm's own options are `objectives.spec.ObjectiveSpec`; a verifier's are the fields of its class.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from rlvr.objectives.needs import Needs
from rlvr.objectives.spec import ObjectiveSpec
from rlvr.validation import STRICT

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class ModelConfig:
    """Which model is trained."""

    __pydantic_config__ = STRICT

    path: str = "tiny"
    """Hugging Face folder or hub id; `tiny` builds the embedded 1 M parameter Llama with a character tokenizer."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    chat_template: str | None = None
    """Jinja file used instead of the tokenizer's own chat template; `none` for base models: the turns' text alone."""


@dataclass(frozen=True)
class DataConfig:
    """Where prompts come from and how a row becomes a prompt."""

    __pydantic_config__ = STRICT

    path: str = "procedural:arithmetic"
    """Hub id, .parquet / .jsonl / .jsonl.gz file, folder of them (`split`...), or one of `procedural:NAME`,
    `reasoning_gym:NAME`, `prime_intellect:ENVIRONMENT`."""
    name: str | None = None
    """Configuration of the hub data set (`main` for openai/gsm8k)."""
    split: str = "train"
    """Split of the hub data set."""
    question: str | None = "question"
    """Column of the problem's text; dots reach into nested columns. Null without `messages`: the `user` template states
    the problem out of any columns."""
    messages: str | None = None
    """Column that holds chat messages [{role, content}] instead of `question`."""
    answer: str | list[str] = "answer"
    """Column of the reference answer; dots reach into nested columns (`reward_model.ground_truth`). Several columns
    ([test, entry_point]) give a mapping of those that are not empty; the first must be there."""
    answer_after: str | None = None
    """Keep only what follows the last such mark in the answer column (`####` for GSM8K)."""
    answer_boxed: bool = False
    """Keep only the content of the last `\\boxed{}` in the answer column (MATH's worked solutions)."""
    system: str | None = None
    """System prompt."""
    user: str = "{question}"
    """Template of the user turn; `{question}` is the problem, other `{column}`s are allowed."""
    examples: list[dict[str, str]] = field(default_factory=list)
    """Worked example turns put before the question: [{question, answer}], rendered by the same `user` template."""
    max_prompt_tokens: Positive = 1024
    """Longer prompts are counted and dropped, never cut."""
    limit: Positive | None = None
    """Use only the first so many prompts."""
    shuffle: bool = True
    """Visit the prompts in a seeded random order, a new one each epoch."""


@dataclass(frozen=True)
class ColdStartConfig:
    """Supervised fine-tuning on worked examples before reinforcement learning (DeepSeek-R1's first stage)."""

    __pydantic_config__ = STRICT

    steps: NonNegative = 0
    """Optimizer steps; 0 skips the stage."""
    path: str | None = None
    """Rows with a worked `completion` column, in any form `data.path` takes."""
    rows_per_step: Positive = 64
    """Examples per optimizer step."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Peak of AdamW's learning rate."""


@dataclass(frozen=True)
class RolloutConfig:
    """How completions are sampled."""

    __pydantic_config__ = STRICT

    engine: Literal["hf", "vllm"] = "hf"
    """`vllm`, or `hf`: transformers in batches, for machines without vLLM."""
    group_size: Positive = 8
    """Completions per prompt (the papers' G)."""
    max_new_tokens: Positive = 512
    """Longest completion, in tokens."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Sampling temperature; the policy's log-probs are taken at the same one."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus; below 1 the ratio is not defined, so it is refused together with one."""
    ignore_eos: bool = False
    """Sample on after the end-of-sequence token, always to `max_new_tokens`: for measuring speed, not for learning."""
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Precision of the engine's weights and arithmetic."""
    max_num_seqs: Positive = 256
    """Most completions sampled at once."""
    cache_gib: Annotated[float, Field(gt=0)] | None = None
    """vLLM's key/value cache in GiB; unset: sized from the longest sequences (CPU) or `gpu_memory` (GPU)."""
    gpu_memory: Fraction = 0.5
    """Share of the GPU's memory that vLLM may take."""
    sleep: bool = True
    """Free vLLM's memory (its cache, on a GPU also its weights) while the policy trains, and the policy's meanwhile."""
    compile: bool = False
    """Let vLLM compile and capture graphs: slower start, faster tokens."""
    handover_tolerance: Annotated[float, Field(gt=0)] | None = None
    """Largest mean absolute log-prob difference of the probe after a hand-over; unset: 1e-3 in float32, 0.1 below."""


@dataclass(frozen=True)
class OptimizerConfig:
    """What AdamW keeps of each parameter besides the float32 sum of its gradients, and where."""

    __pydantic_config__ = STRICT

    moments: Literal["float32", "int8"] = "float32"
    """`int8`: both moments in 8 bits with a scale for each 256 values, 2 bytes a parameter instead of 8."""
    master_weights: Literal["float32", "stochastic_rounding"] = "float32"
    """`float32`: a copy of each bfloat16 weight takes the steps; `stochastic_rounding`: none, 4 bytes less a parameter,
    each step is rounded up or down at random, right in the mean."""
    offload: bool = False
    """Keep master weights, moments and summed gradients in CPU memory and do the step there; the GPU keeps weights."""


@dataclass(frozen=True)
class PolicyConfig:
    """How the policy is updated."""

    __pydantic_config__ = STRICT

    prompts_per_step: Positive = 32
    """Prompts per step; rows = prompts x `rollout.group_size`."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-6
    """Peak of AdamW's learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after warm-up; `linear` and `cosine` fall to 0 at the last step."""
    warmup_steps: NonNegative = 0
    """Optimizer steps of linear warm-up."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW's decoupled weight decay, on matrices only."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """AdamW's first moment."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """AdamW's second moment."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradients are scaled down to this global norm."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Precision of the weights in forward and backward; `policy.optimizer` says what is kept beside them."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    tokens_per_microbatch: Positive = 16384
    """Most tokens (prompts included) in one forward and backward; a longer row goes alone."""
    logprob_chunk_tokens: Positive = 1024
    """Tokens whose [tokens, vocabulary] logits exist at once."""
    share_prompts: bool = True
    """Compute the prompt, and whatever else the completions of a group begin with, once for all of them."""
    gradient_checkpointing: Literal["none", "full", "selective"] = "none"
    """Compute activations again in backward: `full` all of a layer, a third more compute; `selective` all but matrix
    products and attention, little more compute for less of the memory."""
    offload_activations: bool = False
    """Keep activations in CPU memory between forward and backward; ignored on CPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes the GPU when there is one."""


@dataclass(frozen=True)
class CriticConfig:
    """The network that `objective.advantage.baseline=critic` trains; its mathematics is `objective.critic`."""

    __pydantic_config__ = STRICT

    backbone: Literal["own", "shared"] = "own"
    """`own`: a second model of the start weights; `shared`: a head on the policy's, whose losses then add."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-5
    """AdamW's, constant, of the critic's own weights (with a shared backbone: the head); the rest is the policy's."""


@dataclass(frozen=True)
class ReferenceConfig:
    """The model of the KL terms, read where `objective.kl.coef` is not 0."""

    __pydantic_config__ = STRICT

    path: str | None = None
    """Hugging Face folder or hub id; unset: the policy's start model, after its cold start."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    refresh_every: NonNegative = 0
    """Steps after which it becomes the policy as it is then; 0: never."""


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters (LoRA, Hu et al. 2021), trained and handed over instead of the weights, which stay frozen."""

    __pydantic_config__ = STRICT

    rank: NonNegative = 0
    """Rank of each adapter; 0: no adapters, all weights are trained. A critic's own backbone gets some too; a cold
    start trains all weights in any case."""
    alpha: Positive = 32
    """An adapter's output is scaled by alpha / rank. The best learning rate is about 10 times that of full training."""
    targets: str | list[str] = "all-linear"
    """Layers that get an adapter: `all-linear` are all but the output head; else their names ([q_proj, v_proj])."""


@dataclass(frozen=True)
class ScoringConfig:
    """The worker processes that run verifiers."""

    __pydantic_config__ = STRICT

    workers: Positive = 2
    """Processes."""
    deadline_seconds: Annotated[float, Field(gt=0)] = 10.0
    """Wall time for one completion, from the start of its work; then its worker is killed and replaced."""
    max_fault_share: Fraction = 0.2
    """Larger share of verifier faults (time-outs, errors, bad golds) in a step stops the run."""


@dataclass(frozen=True)
class EvalConfig:
    """Held-out evaluation during and after training."""

    __pydantic_config__ = STRICT

    every: NonNegative = 0
    """Steps between evaluations, which also run before the first and after the last step; 0: none."""
    path: str | None = None
    """Held-out rows, as `data.path`; unset: the data set named by `data.path` with `eval.split`."""
    split: str = "test"
    """Split of the hub data set."""
    limit: Positive | None = None
    """Use only the first so many prompts."""
    samples: Positive = 1
    """Completions per prompt."""
    k: list[Positive] = field(default_factory=lambda: [1])
    """The k of pass@k and maj@k; each at most `samples`."""
    temperature: Annotated[float, Field(ge=0)] = 1.0
    """Sampling temperature; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus."""


@dataclass(frozen=True)
class CheckpointConfig:
    """Saving and going on."""

    __pydantic_config__ = STRICT

    every: NonNegative = 50
    """Steps between checkpoints; the last step and Ctrl-C always save; 0: only those."""
    keep: Positive = 2
    """Newest checkpoints kept."""


@dataclass(frozen=True)
class LogConfig:
    """Where metrics go, besides `metrics.jsonl`, which is always written."""

    __pydantic_config__ = STRICT

    rollouts: bool = True
    """Write every rollout of every step as parquet."""
    tensorboard: bool = False
    """Write TensorBoard events."""
    wandb: Literal["off", "offline", "online"] = "off"
    """`offline` needs neither account nor network."""
    wandb_project: str = "rlvr"
    """Project name at wandb."""


@dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    __pydantic_config__ = STRICT

    name: str = "run"
    """Name of the run; its folder is `output/name`."""
    output: str = "runs"
    """Folder that holds the runs."""
    seed: NonNegative = 0
    """Seed of data order, sampling and initial weights."""
    steps: Positive = 100
    """Steps of generate, score, update, sync."""
    resume: str = "never"
    """`never` refuses a folder that holds a run, `auto` goes on from its newest whole checkpoint when there is one."""
    preflight: Literal["refuse", "warn", "off"] = "refuse"
    """Small trial batch before the first step: `refuse` stops where nothing can be learnt, `warn` only says so."""
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    cold_start: ColdStartConfig = field(default_factory=ColdStartConfig)
    objective: ObjectiveSpec = field(default_factory=ObjectiveSpec)
    verifier: dict[str, dict[str, Any]] = field(default_factory=lambda: {"math": {}})
    """Verifiers by name, each with its own options; several are combined as a weighted sum."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    reference: ReferenceConfig = field(default_factory=ReferenceConfig)
    scoring: ScoringConfig = field(default_factory=ScoringConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)

    @property
    def folder(self) -> Path:
        return Path(self.output) / self.name

    @property
    def reference_is_base(self) -> bool:
        """Whether the KL's reference is what the policy's adapters lie on."""
        return self.lora.rank > 0 and self.reference.path is None

    @property
    def reference_model(self) -> str:
        """Which model the KL's reference is, for people."""
        return self.reference.path or ("the policy without its adapters" if self.lora.rank else "the start model")

    @property
    def total_updates(self) -> int:
        """Optimizer steps of the policy, which waits for the critic's warm-up."""
        waiting = self.objective.critic.warmup_steps if Needs(self.objective).needs_critic else 0
        return max(self.steps - waiting, 0) * self.objective.num_steps
