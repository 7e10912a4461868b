"""`rlvr explain recipe=NAME [key=value ...]`: what a run would compute, and why, without running it."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from rlvr.commands.compose import YamlSource, compose, flat, flow
from rlvr.commands.recipes import WIDTH
from rlvr.config import TrainConfig
from rlvr.config_checks import check_across, train_config
from rlvr.errors import ConfigError
from rlvr.objectives import formula
from rlvr.objectives.needs import Needs
from rlvr.objectives.spec import ObjectiveSpec
from rlvr.observe.console import batch_arithmetic, counted
from rlvr.validation import flat_fields

USAGE = "rlvr explain recipe=NAME [group=choice ...] [key=value ...] [--config-dir DIR] [--config-path RUN]"

# Beside every choice by name: a value of each number whose legality depends on other keys.
NUMBERS = {
    "rollout.group_size": 1,
    "rollout.top_p": 0.9,
    "objective.trust.dual": 3.0,
    "objective.kl.coef": 0.1,
    "objective.correction.low": 0.5,
    "objective.advantage.success_order": 1,
    "objective.filters.off_policy_mask": 0.5,
}

Pairs = Iterable[tuple[str, str]]


def main(argv: list[str]) -> int:
    """Runs the command and returns its exit code.

    Raises:
        ConfigError: the run itself would be refused.
    """
    parser = argparse.ArgumentParser(prog="rlvr explain", usage=USAGE, description=__doc__)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--config-dir", type=Path, help="folder with more recipes and groups")
    parser.add_argument("--config-path", type=Path, metavar="RUN", help="explain a run's config.yaml")
    arguments = parser.parse_intermixed_args(argv)
    source = YamlSource(config_dir=arguments.config_dir, config_path=arguments.config_path)
    composed = compose(arguments.overrides, source)
    config = train_config(composed.values)
    sections = {
        "Objective": objective(config),
        "Batch": batch(config),
        "Log-probs, and what else the loss reads": inputs(config),
        "Values that are not the defaults": aligned(chosen(config, composed.origins), "  # "),
        "Warnings": folded(check_across(config)),
        "Single changes that would be refused": folded(refused(config)),
    }
    print("\n\n".join("\n".join([title, *lines]) for title, lines in sections.items() if lines))
    return 0


def objective(config: TrainConfig) -> list[str]:
    """The formula, what its symbols mean, and what is left out of its sums."""
    spec = config.objective
    if spec.constant_length is None:
        spec = replace(spec, constant_length=config.rollout.max_new_tokens)
    lines = [*aligned(formula.equations(spec), " = "), "  where", *aligned(formula.symbols(spec), "  ", indent=4)]
    return [*lines, *folded(f"left out: {what}" for what in formula.left_out(spec))]


def batch(config: TrainConfig) -> list[str]:
    """From prompts to optimizer steps, and the run's totals."""
    spec, rollout, policy, lora = config.objective, config.rollout, config.policy, config.lora
    rows = policy.prompts_per_step * rollout.group_size
    lines = [f"a step: {batch_arithmetic(policy.prompts_per_step, rollout.group_size, spec.num_steps)}"]
    if spec.num_steps > 1:
        cut = f"{counted(spec.minibatches, 'minibatch')} of {counted(rows // spec.minibatches, 'row')}"
        lines.append(f"its updates: {spec.epochs} × {cut}; all but the first are off policy")
    lines += [
        f"its completions: {rollout.max_new_tokens:,} tokens each at most, {rows * rollout.max_new_tokens:,} together",
        f"a microbatch: {policy.tokens_per_microbatch:,} tokens at most with prompts; its size changes no gradient",
        f"the run: {counted(config.steps, 'step')}, {counted(config.steps * rows, 'completion')}, "
        f"{counted(config.total_updates, 'update')}",
    ]
    if lora.rank:
        size = f"{lora.rank} × (inputs + outputs) weights beside each layer of lora.targets={flow(lora.targets)}"
        lines.append(f"trained: adapters alone, W x + {lora.alpha / lora.rank:g} B A x, {size}")
    return [f"  {line}" for line in lines]


def inputs(config: TrainConfig) -> list[str]:
    """Each tensor that the loss reads: where it comes from, and which choice asks for it."""
    spec, needs = config.objective, Needs(config.objective)
    reference, refresh = config.reference_model, config.reference.refresh_every
    again = f", every {refresh} steps of the policy as it is then" if refresh else ""
    kl = f"objective.kl.placement={spec.kl.placement}, objective.kl.coef={spec.kl.coef:g}"
    pairs = [
        ("policy", "the forward of each update, with gradient"),
        ("rollout", f"as the engine drew them; read by {', '.join(_readers_of_rollout(spec))}"),
        ("old", _old(needs)),
        ("reference", f"a forward of {reference}{again}: {kl}" if needs.needs_reference else f"none: {kl}"),
        ("entropy", "from the same forward, " + ("with gradient" if needs.needs_entropy else "for the metrics only")),
    ]
    if needs.needs_exact_kl:
        pairs.append(("exact KL", f"whole distributions of policy and reference: objective.kl.estimator=exact, {kl}"))
    if needs.needs_top_k:
        why = f"objective.trust.divergence={spec.trust.divergence}"
        pairs.append(("top-k", f"the engine's {needs.needs_top_k} likeliest tokens, and the policy's there: {why}"))
    if needs.needs_critic:
        whose = f"critic.backbone={config.critic.backbone}"
        pairs.append(("values", f"a forward of the critic, {whose}: objective.advantage.baseline=critic"))
    if needs.needs_step_rewards:
        pairs.append(("step rewards", "of a verifier that rewards steps: objective.advantage.credit=process"))
    return aligned(pairs, "  ")


def _readers_of_rollout(spec: ObjectiveSpec) -> list[str]:
    readers = {
        "objective.ratio.anchor=rollout": spec.ratio.level != "none" and spec.ratio.anchor == "rollout",
        f"objective.correction.kind={spec.correction.kind}": spec.correction.kind != "none",
        "objective.filters.off_policy_mask": spec.filters.off_policy_mask is not None,
        "the metrics mismatch/*": True,
    }
    return [choice for choice, reads in readers.items() if reads]


def _old(needs: Needs) -> str:
    if needs.needs_old:
        return f"a forward before the first update: {', '.join(needs.readers_of_old)}"
    if needs.spec.num_steps == 1:
        return "no forward: in the only update on a batch they are the policy's own, detached"
    return "none: nothing reads them"


def chosen(config: TrainConfig, origins: dict[str, str]) -> Iterator[tuple[str, str]]:
    """(key=value, where it is set and the default) of each value that is not the default."""
    defaults = flat(asdict(TrainConfig()))
    for key, value in flat(asdict(config)).items():
        if key not in defaults or defaults[key] != value:
            default = f", default {flow(defaults[key])}" if key in defaults else ""
            yield f"{key}={flow(value)}", f"{origins.get(key, 'chosen by its group')}{default}"


def refused(config: TrainConfig) -> list[str]:
    """Every choice that cannot be put in the place of the present one while all other keys stay, and why."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for key, value in neighbours(config):
        try:
            check_across(changed(config, key, value))
        except ConfigError as error:
            where = "" if error.key == key else f"{error.key}={error.value!r} "
            reasons.setdefault((key, where + error.mend), []).append(flow(value))
    return [f"{key}={' or '.join(values)}: {why}" for (key, why), values in reasons.items()]


def neighbours(config: TrainConfig) -> Iterator[tuple[str, Any]]:
    """(Key, other value) of each choice of the objective, and of `NUMBERS`."""
    present = flat(asdict(config))
    for key, hint, _, _ in flat_fields(ObjectiveSpec, "objective."):
        values = (True, False) if hint is bool else get_args(hint) if get_origin(hint) is Literal else ()
        yield from ((key, value) for value in values if value != present[key])
    yield from ((key, value) for key, value in NUMBERS.items() if value != present[key])


def changed(options: Any, key: str, value: Any) -> Any:
    """The options with another value at a dotted key."""
    name, _, rest = key.partition(".")
    inner = getattr(options, name)
    return replace(options, **{name: changed(inner, rest, value) if is_dataclass(inner) else value})


def aligned(pairs: Pairs, between: str, indent: int = 2) -> list[str]:
    """Two columns; the right one is folded, and begins below an entry that is too long for the left one."""
    rows = list(pairs)
    left = min(max((len(name) for name, _ in rows), default=0), WIDTH // 2)
    lines = []
    for name, text in rows:
        head = f"{' ' * indent}{name:<{left}}{between}"
        if len(name) > left:
            lines.append(head.removesuffix(between))
            head = " " * (indent + left) + between
        lines.append(textwrap.fill(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head)))
    return lines


def folded(texts: Iterable[str]) -> list[str]:
    """One paragraph a text."""
    return [textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="    ") for text in texts]
