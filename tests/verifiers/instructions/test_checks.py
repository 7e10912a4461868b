"""Each constraint type of IFEval: what keeps it, what breaks it, and no input that takes long."""

import time

import pytest

from rlvr.verifiers.instructions.checks import CHECKS

# id -> [(arguments, kept by, broken by)]
EXAMPLES = {
    "keywords:existence": [({"keywords": ["sea", "C++"]}, ["The SEA, c++", "nausea c++"], ["sea", "", "C sea +"])],
    "keywords:frequency": [
        ({"keyword": "war", "frequency": 2, "relation": "at least"}, ["War, wars", "war war war"], ["war", ""]),
        ({"keyword": "war", "frequency": 2, "relation": "less than"}, ["war", ""], ["War war"]),
    ],
    "keywords:forbidden_words": [({"forbidden_words": ["rock", "a.b"]}, ["rocket axb", ""], ["a Rock.", "see a.b!"])],
    "keywords:letter_frequency": [
        ({"letter": "#", "let_frequency": 2, "let_relation": "at least"}, ["##", "# #x#"], ["#", ""]),
        ({"letter": "E", "let_frequency": 2, "let_relation": "less than"}, ["e", "x"], ["Ee"]),
    ],
    "language:response_language": [({"language": "de"}, ["Das ist ein guter Tag für uns."], ["This is a good day."])],
    "length_constraints:number_sentences": [
        ({"num_sentences": 2, "relation": "at least"}, ["A b. C d.", "A. B! C?"], ["One only.", ""]),
        ({"num_sentences": 2, "relation": "less than"}, ["One only.", ""], ["A b. C d."]),
    ],
    "length_constraints:number_paragraphs": [
        (
            {"num_paragraphs": 2},
            ["a\n***\nb", "***\na *** b\n***", "a***b"],
            ["a\n\nb", "a***b***c", "a *** *** b", "", "a"],
        )
    ],
    "length_constraints:number_words": [
        ({"num_words": 3, "relation": "at least"}, ["a b c", "it's so"], ["a b", ""]),
        ({"num_words": 3, "relation": "less than"}, ["a b"], ["a b c"]),
    ],
    "length_constraints:nth_paragraph_first_word": [
        (
            {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "weekend"},
            ["a\n\nWeekend, b", 'a\n\n\n\n"Weekend" b', "a\n\nweekend's"],
            ["weekend\n\na", "a\n\nb weekend", "a\n\nweekend\n\nc", "weekends", ""],
        )
    ],
    "detectable_content:number_placeholders": [
        ({"num_placeholders": 2}, ["[a] and [b c]", "[a][b][c]", "[x[a]] [b]"], ["[a]", "[a [b", "[a\n] [b]", ""])
    ],
    "detectable_content:postscript": [
        ({"postscript_marker": "P.S."}, ["a\nP.S. b", "a p. s. b"], ["PS b", "a", "P.P b"]),
        ({"postscript_marker": "P.P.S"}, ["a\nP.P.S b", "p. p.s."], ["P.S. b", ""]),
    ],
    "detectable_format:number_bullet_lists": [
        (
            {"num_bullets": 2},
            ["* a\n* b", "- a\n  - b", "x:\n* a\n- b\nend"],
            ["* a", "* a\n* b\n* c", "**a**\n* b", ""],
        )
    ],
    "detectable_format:constrained_response": [
        ({}, ["My answer is yes.", "Well. My answer is maybe. So"], ["my answer is yes.", "My answer is: no.", "yes"])
    ],
    "detectable_format:number_highlighted_sections": [
        (
            {"num_highlights": 2},
            ["*a* and *b c*", "**a** *b*", "**a**\n**b**"],
            ["*a*", "*a", "** ** * *", "*a\nb* *c", ""],
        )
    ],
    "detectable_format:multiple_sections": [
        (
            {"section_spliter": "Day", "num_sections": 2},
            ["Day 1\na\nDay 2\nb", "Day1 Day2 Day3"],
            ["Day 1", "Day one Day two", ""],
        )
    ],
    "detectable_format:json_format": [
        (
            {},
            ['{"a": [1, null]}', '```json\n{"a": 1}\n```', "```\n[1]\n```", ' "a" '],
            ["{a: 1}", "Here: {}", "", "[" * 99_999],
        )
    ],
    "detectable_format:title": [
        ({}, ["<<a>>\nb", "x <<The title>> y", "<<<a>>>"], ["<a>", "<<>>", "<< >>", "<<a\n>>", "a>> <<b", ""])
    ],
    "combination:two_responses": [
        (
            {},
            ["a\n******\nb", "******a******b******"],
            ["a", "a******a", "a******b******c", "a************b", "******", ""],
        )
    ],
    "combination:repeat_prompt": [
        (
            {"prompt_to_repeat": "Write a poem. "},
            ["write A poem. Roses", "  Write a poem."],
            ["Roses. Write a poem.", ""],
        )
    ],
    "startend:end_checker": [
        ({"end_phrase": "Is that all?"}, ["a. is that all?", 'a "Is that all?" \n'], ["Is that all? b", ""])
    ],
    "startend:quotation": [({}, ['"a"', ' "a "b" c"\n'], ["a", '"', '"a', "'a'", ""])],
    "change_case:english_capital": [
        (
            {},
            ["THIS IS A GOOD DAY FOR ALL OF US."],
            ["This is a good day for all of us.", "DAS IST EIN SEHR GUTER TAG FÜR UNS ALLE.", ""],
        )
    ],
    "change_case:english_lowercase": [
        (
            {},
            ["this is a good day for all of us."],
            ["This is a good day for all of us.", "das ist ein sehr guter tag für uns alle.", ""],
        )
    ],
    "change_case:capital_word_frequency": [
        ({"capital_frequency": 2, "capital_relation": "at least"}, ["NASA is OK", "A B C"], ["Nasa is OK", ""]),
        ({"capital_frequency": 2, "capital_relation": "less than"}, ["Nasa is OK"], ["NASA is OK"]),
    ],
    "punctuation:no_comma": [({}, ["a; b", "a，b"], ["a, b"])],
}
CASES = [(name, *example) for name, examples in EXAMPLES.items() for example in examples]


def test_every_type_has_examples():
    assert set(EXAMPLES) == set(CHECKS)


@pytest.mark.parametrize(("name", "arguments", "kept", "broken"), CASES)
def test_what_keeps_and_what_breaks_a_constraint(name, arguments, kept, broken):
    check = CHECKS[name]
    assert [text for text in kept if not check(text, **arguments)] == []
    assert [text for text in broken if check(text, **arguments)] == []


@pytest.mark.parametrize(("name", "arguments"), [(name, arguments) for name, arguments, *_ in CASES])
def test_a_long_response_takes_linear_time(name, arguments):
    for text in (
        "[",
        "*",
        "<<",
        "\n",
        " ",
        "* a*",
        "a",
        "[a]",
        "P.",
        "***",
        "******",
        "Day ",
        "{",
        "```",
        '"',
        "A\n\n",
    ):
        started = time.process_time()
        CHECKS[name](text * (60_000 // len(text)), **arguments)
        assert time.process_time() - started < 1.0, text
