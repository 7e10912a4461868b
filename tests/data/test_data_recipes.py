"""Every YAML of `recipes/data`, run over the real rows it is meant for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rlvr.config import DataConfig
from rlvr.data.prompts import load_prompts
from rlvr.data.templates import ChatTemplate
from rlvr.validation import validate
from rlvr.verifiers.programs.references import read_tests

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"
RECIPES = {file.stem: yaml.safe_load(file.read_text()) for file in (ROOT / "recipes" / "data").glob("*.yaml")}

IFEVAL_FIRST = [
    "punctuation:no_comma",
    "detectable_format:number_highlighted_sections",
    "length_constraints:number_words",
]
# recipe, stored file, rows, prompts, first reference
STORED = [
    ("gsm8k", "gsm8k/train.parquet", 7473, 7473, "72"),
    ("gsm8k", "gsm8k/test_first_half.parquet", 660, 660, "18"),
    ("math", "math/train.parquet", 7490, 7488, "0"),  # two golds are an empty \boxed{}
    ("math500", "math500/test_first_half.parquet", 250, 250, r"\left( 3, \frac{\pi}{2} \right)"),
    ("aime24", "aime24/train.parquet", 30, 30, "204"),
    ("amc23", "amc23/test.parquet", 40, 40, "27"),
    ("dapo_math_17k", "dapo_math/train.parquet", 17212, 17212, "34"),
    ("addition_1digit", "addition_1digit/train.parquet", 61, 61, "15"),
    ("addition_1digit", "addition_1digit/test.parquet", 20, 20, "8"),
    ("svamp", "svamp/test.parquet", 1000, 1000, "145.0"),
    ("olympiadbench", "olympiadbench/test.parquet", 675, 675, "2"),
    ("ifeval", "ifeval/train.jsonl.gz", 541, 541, IFEVAL_FIRST),
    ("countdown", "countdown/train.parquet", 5000, 5000, {"nums": [39, 19, 9], "target": 29}),
    ("countdown", "countdown_easy/test.parquet", 200, 200, {"nums": [12, 7, 7], "target": 12}),
]

# recipe, stored file, rows, prompts, columns of the first reference, what its prompt must hold
PROGRAMS = [
    ("humaneval", "humaneval/test.parquet", 164, 164, "test entry_point prompt canonical_solution", "def has_close"),
    ("humanevalplus", "humanevalplus/test.parquet", 164, 164, "test entry_point prompt canonical_solution", "def has"),
    ("mbpp", "mbpp/train.parquet", 374, 374, "test_list code", "assert max_chain_length("),
    ("mbpp_sanitized", "mbpp_sanitized/no_held_out.parquet", 298, 298, "test_list code", "assert set(similar_elem"),
    ("mbppplus", "mbppplus/no_held_out.parquet", 271, 271, "test code", "assert set(similar_elem"),
    ("code_contests", "code_contests/sample.jsonl.gz", 20, 20, "private_tests", "Alice and Johnny"),
    (
        "livecodebench",
        "livecodebench/sample.jsonl.gz",
        3,
        3,
        "private_test_cases public_test_cases metadata",
        "three cards",
    ),
]


def test_every_recipe_is_read_here() -> None:
    generated = {"arithmetic", "reasoning_gym", "prime_intellect"}
    assert set(RECIPES) == {recipe for recipe, *_ in (*STORED, *PROGRAMS)} | generated


@pytest.mark.parametrize(("recipe", "file", "num_rows", "num_prompts", "columns", "shown"), PROGRAMS)
def test_rows_of_programs_bring_their_tests(
    template: ChatTemplate, recipe: str, file: str, num_rows: int, num_prompts: int, columns: str, shown: str
) -> None:
    data = validate(DataConfig, {**RECIPES[recipe], "path": str(SHARED / file), "max_prompt_tokens": 20_000})
    prompts, report = load_prompts(data, template)
    assert (report.num_rows, report.num_prompts, report.num_broken) == (num_rows, num_prompts, 0)
    assert list(prompts[0].reference) == columns.split()
    assert shown in prompts[0].text
    for prompt in prompts:
        tests = read_tests(prompt.reference)
        assert len(tests) >= 1
        # MBPP 713 and 862 hold their first test twice.
        assert not any(script in prompt.text for script in tests.scripts[1:] if script != tests.scripts[0])


@pytest.mark.parametrize(("recipe", "file", "num_rows", "num_prompts", "reference"), STORED)
def test_stored_rows_load_through_the_mapping(
    template: ChatTemplate, recipe: str, file: str, num_rows: int, num_prompts: int, reference: Any
) -> None:
    # Characters, not words: the limit of the recipe would drop prompts of the embedded tokenizer.
    data = validate(DataConfig, {**RECIPES[recipe], "path": str(SHARED / file), "max_prompt_tokens": 10_000})
    prompts, report = load_prompts(data, template)
    assert (report.num_rows, report.num_prompts) == (num_rows, num_prompts)
    assert report.num_broken == num_rows - num_prompts
    assert report.num_repeated == report.num_conflicting == 0
    assert prompts[0].reference == reference
    assert all(isinstance(prompt.reference, type(reference)) and prompt.question in prompt.text for prompt in prompts)


@pytest.mark.parametrize("recipe", ["arithmetic", "addition_1digit"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_generated_recipes_need_no_file(template: ChatTemplate, recipe: str, split: str) -> None:
    data = validate(DataConfig, {**RECIPES[recipe], "split": split})
    _, report = load_prompts(data, template)
    assert report.num_prompts == report.num_rows
    assert report.longest_tokens <= data.max_prompt_tokens


def test_the_examples_of_addition_1digit_give_away_no_problem_of_the_data(template: ChatTemplate) -> None:
    values: dict[str, Any] = RECIPES["addition_1digit"]
    questions = {
        prompt.question
        for split in ("train", "test")
        for prompt in load_prompts(validate(DataConfig, {**values, "split": split}), template)[0]
    }
    assert len(questions) == 81
    assert not questions & {example["question"] for example in values["examples"]}


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_the_head_comment_names_the_source(recipe: str) -> None:
    head = (ROOT / "recipes" / "data" / f"{recipe}.yaml").read_text().split("\npath:")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    assert f"https://huggingface.co/datasets/{RECIPES[recipe]['path']}" in head or "rlvr/data/" in head
