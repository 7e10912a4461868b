"""IFEval's constraints as one verdict: strict and loose, prompts and instructions, and every row of the data set."""

import gzip
import json
from pathlib import Path

import pytest
from languages import SENTENCES

from rlvr.scoring import Scorer
from rlvr.verifiers.base import Case
from rlvr.verifiers.constraints import Constraints
from rlvr.verifiers.instructions.checks import CHECKS
from rlvr.verifiers.registry import build

IFEVAL = Path(__file__).parents[2].parent / "shared" / "data" / "ifeval" / "train.jsonl.gz"
IDS, KWARGS = ["punctuation:no_comma", "startend:end_checker"], [{}, {"end_phrase": "The end."}]


def judge(response, ids=IDS, kwargs=KWARGS, **options):
    return Constraints(**options)(Case(response, ids, extra={"kwargs": kwargs}))


def test_all_or_the_share():
    assert (judge("So. The end.").reward, judge("So. The end.").status) == (1.0, "correct")
    verdict = judge("So, well. The end.")
    assert (verdict.reward, verdict.status, verdict.detail) == (0.0, "wrong", "broken: punctuation:no_comma")
    assert judge("So, well. The end.", reward="share").reward == 0.5
    assert verdict.parts == {"strict": 0.0, "loose": 0.0, "strict_share": 0.5, "loose_share": 0.5}


@pytest.mark.parametrize(
    "response",
    [
        "Sure, here you are:\nSo. The end.",  # the first line is talk
        "So. The end.\nHope it helps!",  # the last line is
        "Sure, here:\nSo. The end.\nHope, it helps!",
        "*So. The end.*",
        "Sure, here:\n**So. The end.**\nHope, it helps!",
    ],
)
def test_loose_forgives_a_first_or_last_line_and_asterisks(response):
    assert judge(response).parts["strict"] == 0.0
    kept = judge(response, loose=True)
    assert (kept.parts["loose_share"], kept.status) == (1.0, "correct")


def test_loose_takes_each_constraint_in_its_own_reading_and_no_empty_one():
    verdict = judge("a, b\nThe end.\nc, d", loose=True)
    assert verdict.parts["loose_share"] == 1.0
    assert judge("a, b", ids=["punctuation:no_comma"], kwargs=[{}], loose=True).reward == 0.0


def test_the_reasoning_is_not_the_answer():
    assert judge("<think>a, b</think>So. The end.").reward == 1.0
    assert judge("<think>So. The end.").status == "no_answer"
    assert judge(" \n").status == "no_answer"
    cut = Constraints()(Case("<think>a", IDS, finish_reason="length", extra={"kwargs": KWARGS}))
    assert cut.status == "truncated"
    assert judge("<think>a, b</think>So. The end.", thinking="searched").reward == 0.0


@pytest.mark.parametrize(
    ("ids", "kwargs", "detail"),
    [
        (["no:such"], [{}], "there is no constraint 'no:such'"),
        (IDS, [{}], "as many mappings"),
        (IDS, None, "as many mappings"),
        ([], [], "a list of constraint ids"),
        ("punctuation:no_comma", [{}], "a list of constraint ids"),
        (["startend:end_checker"], [{}], "startend:end_checker: missing a required argument: 'end_phrase'"),
        (["punctuation:no_comma"], [{"num_words": 3}], "punctuation:no_comma: got an unexpected keyword argument"),
    ],
)
def test_a_row_that_cannot_be_read_is_the_datas_fault(ids, kwargs, detail):
    verdict = judge("a", ids=ids, kwargs=kwargs)
    assert verdict.status == "unparseable_gold"
    assert detail in verdict.detail


def test_the_hubs_rows_hold_the_arguments_of_all_types_as_null():
    assert judge("a", ids=["punctuation:no_comma"], kwargs=[{"num_words": None, "letter": None}]).reward == 1.0


def rows():
    with gzip.open(IFEVAL, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_every_row_of_ifeval_is_judged_and_every_type_occurs():
    data = rows()
    assert {name for row in data for name in row["instruction_id_list"]} == set(CHECKS)
    verify = Constraints()
    for row in data:
        verdict = verify(Case("So be it.", row["instruction_id_list"], extra={"kwargs": row["kwargs"]}))
        assert not verdict.is_fault, (row["key"], verdict.detail)


def times(count, relation, text):
    """The text as often as the relation asks for."""
    return text * (count if relation == "at least" else count - 1)


PROSE = "this is a good day for all of us"
# A response that keeps the constraint, from its arguments; one that breaks it.
KEEP = {
    "keywords:existence": lambda keywords: " ".join(keywords),
    "keywords:frequency": lambda keyword, frequency, relation: times(frequency, relation, f"{keyword} ") + "-",
    "keywords:forbidden_words": lambda forbidden_words: "-",
    "keywords:letter_frequency": lambda letter, let_frequency, let_relation: (
        times(let_frequency, let_relation, letter) + "-"
    ),
    "language:response_language": lambda language: SENTENCES[language],
    "length_constraints:number_sentences": lambda num_sentences, relation: (
        times(num_sentences, relation, "So be it. ") + "\n-"
    ),
    "length_constraints:number_words": lambda num_words, relation: times(num_words, relation, "so ") + "-",
    "length_constraints:number_paragraphs": lambda num_paragraphs: "\n***\n".join(["so"] * num_paragraphs),
    "length_constraints:nth_paragraph_first_word": lambda num_paragraphs, nth_paragraph, first_word: "\n\n".join(
        [first_word.title() + " is so"] * num_paragraphs
    ),
    "detectable_content:number_placeholders": lambda num_placeholders: "[name] " * num_placeholders,
    "detectable_content:postscript": lambda postscript_marker: f"so\n\n{postscript_marker} no",
    "detectable_format:number_bullet_lists": lambda num_bullets: "* so\n" * num_bullets,
    "detectable_format:constrained_response": lambda: "My answer is no.",
    "detectable_format:number_highlighted_sections": lambda num_highlights: "*so* " * num_highlights,
    "detectable_format:multiple_sections": lambda section_spliter, num_sections: "\n".join(
        f"{section_spliter} {i + 1}\nso" for i in range(num_sections)
    ),
    "detectable_format:json_format": lambda: '{"a": 1}',
    "detectable_format:title": lambda: "<<so>>\nno",
    "combination:two_responses": lambda: "so\n******\nno",
    "combination:repeat_prompt": lambda prompt_to_repeat: f"{prompt_to_repeat}\n\nso",
    "startend:end_checker": lambda end_phrase: f"so. {end_phrase}",
    "startend:quotation": lambda: '"so"',
    "change_case:english_capital": lambda: PROSE.upper(),
    "change_case:english_lowercase": lambda: PROSE,
    "change_case:capital_word_frequency": lambda capital_frequency, capital_relation: (
        times(capital_frequency, capital_relation, "SO ") + "-"
    ),
    "punctuation:no_comma": lambda: "so",
}
BREAK = {
    "keywords:existence": lambda keywords: " ".join(keywords[1:]) or "-",
    "keywords:frequency": lambda keyword, frequency, relation: (
        times(frequency - 1, relation, f"{keyword} ") if relation == "at least" else f"{keyword} " * frequency
    ),
    "keywords:forbidden_words": lambda forbidden_words: f"so, {forbidden_words[-1].title()}!",
    "keywords:letter_frequency": lambda letter, let_frequency, let_relation: (
        letter * (let_frequency - (let_relation == "at least"))
    ),
    "language:response_language": lambda language: PROSE,
    "length_constraints:number_sentences": lambda num_sentences, relation: (
        "So be it. " * (num_sentences - (relation == "at least"))
    ),
    "length_constraints:number_words": lambda num_words, relation: "so " * (num_words - (relation == "at least")),
    "length_constraints:number_paragraphs": lambda num_paragraphs: "\n***\n".join(["so"] * (num_paragraphs + 1)),
    "length_constraints:nth_paragraph_first_word": lambda num_paragraphs, nth_paragraph, first_word: "\n\n".join(
        [f"so {first_word}"] * num_paragraphs
    ),
    "detectable_content:number_placeholders": lambda num_placeholders: "[name] " * (num_placeholders - 1),
    "detectable_content:postscript": lambda postscript_marker: "so\n\nPS no",
    "detectable_format:number_bullet_lists": lambda num_bullets: "* so\n" * (num_bullets + 1),
    "detectable_format:constrained_response": lambda: "no",
    "detectable_format:number_highlighted_sections": lambda num_highlights: "*so* " * (num_highlights - 1),
    "detectable_format:multiple_sections": lambda section_spliter, num_sections: (
        f"{section_spliter} 1\n" * (num_sections - 1)
    ),
    "detectable_format:json_format": lambda: "Here: {}",
    "detectable_format:title": lambda: "<so>",
    "combination:two_responses": lambda: "so\n******\nso",
    "combination:repeat_prompt": lambda prompt_to_repeat: f"so\n{prompt_to_repeat}",
    "startend:end_checker": lambda end_phrase: f"{end_phrase} so",
    "startend:quotation": lambda: "'so'",
    "change_case:english_capital": lambda: PROSE,
    "change_case:english_lowercase": lambda: PROSE.upper(),
    "change_case:capital_word_frequency": lambda capital_frequency, capital_relation: (
        "SO " * (capital_frequency - (capital_relation == "at least"))
    ),
    "punctuation:no_comma": lambda: "so, so",
}


def test_every_constraint_of_every_row_is_kept_and_broken_by_a_response_made_for_it():
    verify = Constraints()
    for row in rows():
        for name, given in zip(row["instruction_id_list"], row["kwargs"], strict=True):
            right, wrong = (
                verify(Case(made[name](**given) or "-", [name], extra={"kwargs": [given]})).parts["strict"]
                for made in (KEEP, BREAK)
            )
            assert (right, wrong) == (1.0, 0.0), (row["key"], name, given)


def test_the_parts_are_logged_under_its_name_through_the_workers():
    with Scorer({"constraints": {}, "format": {}}, num_workers=1) as scorer:
        (verdict,) = scorer.score([Case("<think>a</think>So. The end.", IDS, extra={"kwargs": KWARGS})])
    assert verdict.parts["constraints/loose_share"] == 1.0
    assert list(verdict.parts) == list(
        build({"constraints": {}, "format": {}})(Case("b", IDS, extra={"kwargs": KWARGS})).parts
    )
