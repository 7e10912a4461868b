"""Environments for the package `verifiers`, as their authors write them; each test module names one."""

import asyncio
import time

import verifiers as vf
from datasets import Dataset


def load_environment(kind="plain", start=0):
    rows = [{"question": f"{i} + {i}?", "answer": str(2 * i), "info": {"i": i}} for i in range(start, start + 4)]
    train = Dataset.from_list([*rows, rows[0]])
    if kind == "multi_turn":
        return Twice(dataset=train, rubric=vf.Rubric(funcs=[exact]))
    if kind == "fails":
        raise KeyError("no such level")
    funcs = {
        "plain": [exact, brief],
        "raises": [exact, raises],
        "hangs": [hangs],
        "hangs_async": [hangs_async],
        "no_number": [no_number],
        "group": [best_of_group],
        "infinite": [infinite],
    }[kind]
    rubric = vf.RubricGroup([vf.Rubric(funcs=[func], weights=[1 / (1 + i)]) for i, func in enumerate(funcs)])
    if start:
        return vf.SingleTurnEnv(dataset=train, rubric=rubric, system_prompt="Add.")
    held_out = Dataset.from_list([{"prompt": [{"role": "user", "content": "10 + 10?"}], "answer": "20"}])
    return vf.SingleTurnEnv(dataset=train, eval_dataset=held_out, rubric=rubric, system_prompt="Add.")


class Twice(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": "Are you sure?"}]


def exact(completion, answer):
    print("environments may print what they like")
    return float(completion[-1]["content"].strip() == answer)


async def brief(prompt, completion, info, state):
    await asyncio.sleep(0)
    assert prompt[0]["role"] == "system"
    assert isinstance(info["i"], int)
    assert len(state["trajectory"]) == 1
    return 1.0 if len(completion[-1]["content"]) < 10 else 0.0


def raises(completion):
    raise ZeroDivisionError("as some reward functions do")


def hangs(completion):
    time.sleep(600)


async def hangs_async(completion):
    await asyncio.sleep(600)


def no_number(completion):
    return "right"


def infinite(completion):
    return float("inf")


def best_of_group(completions):
    return [1.0 for _ in completions]
