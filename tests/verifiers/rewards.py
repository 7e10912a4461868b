"""Reward functions as users of TRL and verl write them."""

from functools import partial

import rewards_neighbour as neighbour


def trl_reward(completions, answer, **kwargs):
    return [float(text.endswith(gold)) for text, gold in zip(completions, answer, strict=True)]


def trl_columns(prompts, completions, level, **kwargs):
    return [float(level[0]) if prompts[0] == "2+2" and "answer" in kwargs and "trainer_state" in kwargs else -1.0]


def trl_messages(prompts, completions, solution):
    prompt, completion = prompts[0][0], completions[0][0]
    right = (prompt["role"], completion["role"], completion["content"]) == ("user", "assistant", solution[0])
    return [0.5 if right else 0.0]


async def trl_async(completions):
    return [1.0]


def trl_none(completions):
    return [None]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    right = solution_str == ground_truth and data_source == "sums" and extra_info["level"] == 3
    return {"score": 1.0 if right else 0.0, "length": len(solution_str), "note": "text"}


def compute_score_only(solution_str, ground_truth, **kwargs):
    return neighbour.EXACT * (solution_str == ground_truth)


partial_reward = partial(trl_reward)


def raises(completions):
    raise KeyError("level")


def returns_two(completions):
    return [1.0, 2.0]


def returns_nan(completions):
    return [float("nan")]


def returns_text(completions):
    return ["yes"]


def returns_no_score(solution_str, ground_truth):
    return {"acc": 1.0}


def returns_nothing(completions):
    return None


def hangs(completions):
    while True:
        pass


def wants_tokens(completions, completion_ids):
    return [0.0]


def wants_a_column(completions, no_such_column):
    return [0.0]


def of_no_form(response, reference):
    return 1.0
