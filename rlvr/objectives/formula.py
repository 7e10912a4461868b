"""An objective's formula in plain text, put together from one fragment for each value of each axis. Free of torch.

Shape legend: i row, t token, p prompt, j step of a row; what is not marked by i or t belongs to one token.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from operator import attrgetter

from rlvr.objectives.needs import Needs
from rlvr.objectives.spec import ObjectiveSpec

# Key -> value -> fragment. Its first line goes where its axis stands, each further one is an equation of its own.
# {section.key} is the number of the spec; other names in braces are fragments of other axes.
FRAGMENTS: dict[str, dict[str, str]] = {
    "aggregate": {
        "sequence_mean": "1/B Σ_i 1/|y_i| Σ_t x",
        "sequence_sum": "1/B Σ_i Σ_t x",
        "token_mean": "1/(Σ_i |y_i|) Σ_i Σ_t x",
        "prompt_mean": "1/P Σ_p 1/|y_p| Σ_(i in p) Σ_t x",
        "constant": "1/(N L) Σ_i Σ_t x\nL = {constant_length}, the longest completion in tokens",
    },
    "trust.kind": {
        "none": "-A {score}",
        "clip": "-min(ρ A, clip(ρ, 1 - {trust.low:g}, 1 + {trust.high:g}) A)",
        "weight_clip": "-sg(clip(ρ, 1 - {trust.low:g}, 1 + {trust.high:g})) A log π",
        "divergence_mask": "-sg(min(ρ, {trust.cap:g})) M A log π\n"
        "M = 0 where A (p - q) > 0 and d > {trust.high:g} (A > 0) or {trust.low:g} (A < 0), else 1\nd = {divergence}",
        "soft_gate": "-(4/τ) sigmoid(τ (ρ - 1)) A\nτ = {trust.tau_positive:g} where A > 0, {trust.tau_negative:g} else",
        "geo_mean": "-A exp(1/|y_i| Σ_t e)\n"
        "e = min(log ρ, {trust.high:g}) where A > 0, max(log ρ, -{trust.low:g}) else",
        "kl_penalty": "-A ρ + {trust.coef:g} × (h - 1 - log h)\nh = π / {anchor}",
        "clip_cov": "-min(ρ A, clip(ρ, 1 - {trust.low:g}, 1 + {trust.high:g}) A), and 0 at the tokens of U\n"
        "U = {trust.cov_share:g} of the minibatch's tokens (one at least), drawn from those with "
        "{trust.cov_low:g} < cov < {trust.cov_high:g}\ncov = (A - mean A) (log {anchor} - mean log {anchor})",
        "kl_cov": "-A ρ, with + {trust.coef:g} × |log π - log {anchor}| at the tokens of U\n"
        "U = {trust.cov_share:g} of the minibatch's tokens (one at least), those of the largest cov\n"
        "cov = (A - mean A) (log {anchor} - mean log {anchor})",
    },
    "trust.divergence": {
        "tv": "|p - q|",
        "kl": "q log(q/p) + (1-q) log((1-q)/(1-p))",
        "topk_tv": "1/2 Σ_k |p_k - q_k| over the sampler's {trust.top_k} likeliest tokens and the rest as one",
        "topk_kl": "Σ_k q_k log(q_k/p_k) over the sampler's {trust.top_k} likeliest tokens and the rest as one",
    },
    "ratio.level": {
        "none": "log π",
        "token": "ρ\nρ = π / {anchor}",
        "sequence": "ρ\nρ = exp(1/|y_i| Σ_t log(π / {anchor})), one a row",
        "sequence_product": "ρ\nρ = exp(Σ_t log(π / {anchor})), one a row",
    },
    "ratio.anchor": {"old": "π_old", "rollout": "π_rollout"},
    "advantage.baseline": {
        "none": "r",
        "ema": "r - b\nb = mean of r at the first step, then b <- {advantage.ema_decay:g} b + "
        "{ema_step} mean of r after each",
        "batch_mean": "r - mean_batch",
        "group_mean": "r - mean_g",
        "leave_one_out": "r - mean_others",
        "critic": "Σ_(l>=t) (γ λ)^(l-t) δ_l\n"
        "δ_t = R_t + γ V_old(t+1) - V_old(t); after the row's last token V_old = {end}\n"
        "R_t = ({paid}, else 0){kl_in_reward}\nγ, λ = {advantage.gamma:g}, {lam}",
    },
    "advantage.scale": {
        "none": "{centred}",
        "group_std": "{bracketed} / (std_g + {advantage.eps:g}), 0 where the group's r are all equal",
        "batch_std": "{bracketed} / (std over the batch of {centred}, + {advantage.eps:g})",
        "success_rate": "{bracketed} / mean_g, 0 where mean_g is 0",
        "whiten_tokens": "(c - mean c) / sqrt(var c + {advantage.eps:g}), over the tokens of the batch\nc = {centred}",
    },
    "advantage.credit": {
        "outcome": "{value}",
        "process": "Σ a_j over the row's steps j that end at t or later\na_j = {value}",
        "discounted": "Σ_(l>=t) {advantage.gamma:g}^(l-t) R_l\n"
        "R_t = (a at the row's last token, else 0){kl_in_reward}\na = {value}",
    },
    "correction.kind": {
        "none": "{term}",
        "truncate": "min(w, {correction.high:g}) ({term})\nw = {mismatch}, a constant",
        "mask": "w [{correction.low:g} <= w <= {correction.high:g}] ({term})\nw = {mismatch}, a constant",
        "reject": "[{correction.low:g} <= w <= {correction.high:g}] ({term})\nw = {mismatch}",
    },
    "correction.level": {
        "token": "π_old / π_rollout",
        "sequence": "exp(Σ_t log(π_old / π_rollout)), one a row",
        "sequence_mean": "exp(1/|y_i| Σ_t log(π_old / π_rollout)), one a row",
    },
    "kl.placement": {"none": "", "reward": " - {kl.coef:g} × {estimate}", "loss": " + {kl.coef:g} × {weight}KL"},
    "kl.estimator": {
        "k1": "-D\nD = log(π_ref / {policy})",
        "k2": "D²/2\nD = log(π_ref / {policy})",
        "k3": "exp(D) - D - 1\nD = log(π_ref / {policy})",
        "k3_straight": "exp(D) - D - 1 in value, D²/2 in gradient\nD = log(π_ref / {policy})",
        "exact": "Σ_v π(v) log(π(v) / π_ref(v)) over the vocabulary",
    },
    "controller.kind": {
        "fixed": "",
        "horizon": "after each batch times 1 + clip(K/{controller.target:g} - 1, -0.2, 0.2) N/{controller.horizon}, "
        "K the KL measured",
        "band": "halved after a batch whose KL is below {controller.target:g}/"
        "{controller.band:g}, doubled above {controller.target:g} × {controller.band:g}",
    },
    "filters.zero_variance_on": {
        "outcome": "groups whose completions are all correct or all not",
        "reward": "groups whose rewards are all equal",
    },
    "filters.when_short": {"train": "then with those there are", "fail": "then the run stops"},
}

MEANINGS = {
    "x": "what a token adds, to be minimised",
    "B": "rows with a loss token",
    "N": "rows, with or without a loss token",
    "P": "prompts with a loss token",
    "|y_i|": "loss tokens of row i",
    "|y_p|": "loss tokens of all rows of prompt p",
    "A": "advantage, a constant",
    "r": "reward of the completion",
    "mean_batch": "mean of r over the batch",
    "mean_g": "mean of r over the completions of the prompt",
    "mean_others": "mean of r over the other completions of the prompt",
    "std_g": "standard deviation of r over the completions of the prompt",
    "V": "the critic's value of the state before the token",
    "V_old": "the same before the first step on the batch",
    "H": "entropy of the next-token distribution",
    "sg": "stop-gradient: a constant",
    "p, q": "probability of the token under π and under {anchor}",
    "π": "probability of the token under the current policy, the one with gradient",
    "π_old": "the same under the weights before the first step on the batch",
    "π_rollout": "the same as the rollout engine returned it",
    "π_ref": "the same under the reference model",
}
DEVIATIONS = {"group_std", "batch_std", "whiten_tokens"}
STEP_REWARD = "reward of a step; means and deviations are over all steps of the prompt's completions"


def equations(spec: ObjectiveSpec) -> list[tuple[str, str]]:
    """(Symbol, what it equals) of the loss and of all that it is made of, in reading order."""
    return _Composer(spec).equations()


def symbols(spec: ObjectiveSpec) -> list[tuple[str, str]]:
    """(Symbol, meaning) of what the equations use and do not define."""
    defined = equations(spec)
    text = " ".join(right for _, right in defined)
    meanings = {**MEANINGS, "r": STEP_REWARD} if spec.advantage.credit == "process" else MEANINGS
    anchor = FRAGMENTS["ratio.anchor"][spec.ratio.anchor]
    names = {name for name, _ in defined}
    return [(n, m.format(anchor=anchor)) for n, m in meanings.items() if _uses(text, n) and n not in names]


def left_out(spec: ObjectiveSpec) -> list[str]:
    """What the filters take out of the sums, one line each."""
    filters, lines = spec.filters, []
    unvaried = FRAGMENTS["filters.zero_variance_on"][filters.zero_variance_on]
    if filters.zero_variance:
        lines.append(unvaried)
    if filters.dynamic_sampling:
        short = FRAGMENTS["filters.when_short"][filters.when_short]
        surplus = "; prompts of surplus groups come again" if filters.carry_over else ""
        lines.append(f"{unvaried}; further prompts take their place, in {filters.max_rounds} rounds, {short}{surplus}")
    if filters.no_positive_resampling is not None:
        lines.append(
            f"in later epochs, prompts of which {filters.no_positive_resampling:.0%} of completions were correct"
        )
    if filters.overlong_mask:
        counts = "counts" if filters.overlong_in_baseline else "does not count"
        lines.append(f"truncated completions, whose reward {counts} in the baseline")
    return lines


def _uses(text: str, symbol: str) -> bool:
    return any(re.search(rf"(?<![\w|]){re.escape(name)}(?![\w|])", text) for name in symbol.split(", "))


class _Composer:
    """Fills the fragments of one spec; the equations that they bring along gather in `_lines`, outer before inner."""

    def __init__(self, spec: ObjectiveSpec) -> None:
        self._spec = spec
        self._sections = {key: getattr(spec, key) for key in asdict(spec)}
        if spec.constant_length is None:
            self._sections["constant_length"] = "rollout.max_new_tokens"
        self._kl_in = spec.kl.placement if Needs(spec).needs_reference else "none"
        self._lines: list[tuple[str, str]] = []

    def equations(self) -> list[tuple[str, str]]:
        spec = self._spec
        heads = [
            ("loss", self._loss, True),
            ("x", self._term, True),
            ("A", self._advantage, True),
            ("critic loss", self._critic_loss, spec.advantage.baseline == "critic"),
            ("KL", self._kl, self._kl_in != "none"),
            (self._controlled, self._coefficient, spec.controller.kind != "fixed"),
        ]
        lines = []
        for symbol, right, present in heads:
            if present:
                self._lines = []
                lines.append((symbol, right()))
                lines += self._lines
        return lines

    def _loss(self) -> str:
        spec, loss = self._spec, self._fill("aggregate")
        if spec.nll_coef:
            loss += f" - {spec.nll_coef:g} × (mean of log π over the tokens of correct rows)"
        if spec.entropy.coef:
            loss += f" - {spec.entropy.coef:g} × (mean of H over tokens)"
        return loss

    def _term(self) -> str:
        spec, anchor = self._spec, self._fill("ratio.anchor")
        score, divergence = self._fill("ratio.level", anchor=anchor), self._fill("trust.divergence")
        term = self._fill("trust.kind", score=score, anchor=anchor, divergence=divergence)
        if spec.trust.dual is not None:
            term += f", at most -{spec.trust.dual:g} A where A < 0"
        term = self._fill("correction.kind", term=term, mismatch=self._fill("correction.level"))
        if spec.filters.off_policy_mask is not None:
            far = f"1/|y_i| Σ_t log(π_rollout / π) > {spec.filters.off_policy_mask:g}"
            term += f", 0 where A < 0 and {far} in the row"
        if self._kl_in == "loss":
            term += self._fill("kl.placement", weight=f"(π / {anchor}) " if spec.kl.ratio_weighted else "")
        return term

    def _advantage(self) -> str:
        options = self._spec.advantage
        if self._spec.token_credit and options.scale == "whiten_tokens":
            advantage = self._scaled(self._credited(self._centred()))
        else:
            advantage = self._credited(self._scaled(self._centred()))
        if options.success_order is not None:
            advantage += f", times pass@{options.success_order} as estimated from the group"
        if options.ddof and options.scale in DEVIATIONS:
            advantage += f"; deviations divide by n - {options.ddof}"
        return advantage

    def _centred(self) -> str:
        options = self._spec.advantage
        if self._kl_in == "reward" and not self._spec.token_credit:
            self._lines = [("r", "the completion's reward" + self._kl_in_reward("Σ_t KL"))]
        return self._fill(
            "advantage.baseline",
            ema_step=f"{1 - options.ema_decay:g}",
            lam="λ_i" if self._spec.critic.lam_alpha else f"{self._spec.critic.lam_policy:g}",
            end="that of its last state where it was truncated, else 0"
            if self._spec.critic.bootstrap_truncated
            else "0",
            paid=f"{'a step' if options.credit == 'process' else 'the row'}'s reward at its last token",
            kl_in_reward=self._kl_in_reward("KL"),
        )

    def _scaled(self, centred: str) -> str:
        return self._fill("advantage.scale", centred=centred, bracketed=f"({centred})" if " " in centred else centred)

    def _credited(self, value: str) -> str:
        """From rows or steps to tokens; the critic's advantages are of tokens already."""
        spec = self._spec
        if spec.advantage.baseline != "critic":
            return self._fill("advantage.credit", value=value, kl_in_reward=self._kl_in_reward("KL"))
        if spec.critic.lam_alpha is not None:
            self._lines.append(("λ_i", f"1 - 1/({spec.critic.lam_alpha:g} |y_i|), 0 at least"))
        return value

    def _kl_in_reward(self, estimate: str) -> str:
        return self._fill("kl.placement", estimate=estimate) if self._kl_in == "reward" else ""

    def _critic_loss(self) -> str:
        critic, error = self._spec.critic, "(V - G)²"
        if critic.value_clip is not None:
            error = f"max((V - G)², (clip(V, V_old ± {critic.value_clip:g}) - G)²)"
        self._lines = [("G_t", f"V_old(t) + Σ_(l>=t) (γ {critic.lam_critic:g})^(l-t) δ_l")]
        alone = f"; the first {critic.warmup_steps} steps train nothing else" if critic.warmup_steps else ""
        return f"{critic.coef:g} × (mean over tokens of 1/2 {error}){alone}"

    def _kl(self) -> str:
        return self._fill("kl.estimator", policy="π" if self._kl_in == "loss" else "π_old")

    def _coefficient(self) -> str:
        return f"{attrgetter(self._controlled)(self._spec):g} at first; {self._fill('controller.kind')}"

    @property
    def _controlled(self) -> str:
        return "trust.coef" if self._spec.trust.kind == "kl_penalty" else "kl.coef"

    def _fill(self, key: str, **parts: str) -> str:
        """The first line of the chosen value's fragment; the others go before those of what it is made of."""
        text = FRAGMENTS[key][attrgetter(key)(self._spec)].format(**{**self._sections, **parts})
        first, *others = text.split("\n")
        pairs = [line.partition(" = ") for line in others]
        self._lines = [(symbol, right) for symbol, _, right in pairs] + self._lines
        return first
