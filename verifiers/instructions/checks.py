"""The 25 constraint types of IFEval: each a function of the response and of the row's arguments to whether it holds.

Zhou et al. 2023, Instruction-Following Evaluation for Large Language Models, arXiv 2311.07911, table 1; where the paper
leaves a definition open, the data set's own scorer (google-research/instruction_following_eval) decides. Sentences are
split by rules instead of nltk's model. All linear in the response.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from functools import lru_cache

from rlvr.verifiers.instructions.texts import count_capital_words, count_sentences, count_words, is_in_language

_RELATIONS: dict[str, Callable[[int, int], bool]] = {"at least": operator.ge, "less than": operator.lt}
_FENCE = re.compile(r"^```(?:json)?\s*|\s*```$", re.IGNORECASE)
_QUOTES = "\"'“”‘’"


def contains_keywords(response: str, *, keywords: list[str]) -> bool:
    """Each keyword stands somewhere, in any case, also inside a word."""
    return all(keyword.casefold() in response.casefold() for keyword in keywords)


def keyword_frequency(response: str, *, keyword: str, frequency: int, relation: str) -> bool:
    return _RELATIONS[relation](response.casefold().count(keyword.casefold()), frequency)


def lacks_words(response: str, *, forbidden_words: list[str]) -> bool:
    """None of them stands as a word of its own."""
    return not any(_whole_word(word).search(response) for word in forbidden_words)


def letter_frequency(response: str, *, letter: str, let_frequency: int, let_relation: str) -> bool:
    return _RELATIONS[let_relation](response.lower().count(letter.lower()), let_frequency)


def response_language(response: str, *, language: str) -> bool:
    return is_in_language(response, language)


def number_sentences(response: str, *, num_sentences: int, relation: str) -> bool:
    return _RELATIONS[relation](count_sentences(response), num_sentences)


def number_words(response: str, *, num_words: int, relation: str) -> bool:
    return _RELATIONS[relation](count_words(response), num_words)


def number_paragraphs(response: str, *, num_paragraphs: int) -> bool:
    """Exactly so many between `***` dividers, none of them empty; a divider may open or close the text."""
    paragraphs = [paragraph.strip() for paragraph in response.split("***")]
    inner = paragraphs[1:-1]
    return all(inner) and sum(map(bool, paragraphs)) == num_paragraphs


def nth_paragraph_first_word(response: str, *, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """Exactly so many paragraphs between blank lines, and the n-th begins with the word."""
    paragraphs = [paragraph.strip() for paragraph in response.split("\n\n") if paragraph.strip()]
    if len(paragraphs) != num_paragraphs or not 1 <= nth_paragraph <= num_paragraphs:
        return False
    word = paragraphs[nth_paragraph - 1].split(maxsplit=1)[0].lstrip(_QUOTES)
    return re.split(r"[.,?!'\"]", word, maxsplit=1)[0].casefold() == first_word.casefold()


def number_placeholders(response: str, *, num_placeholders: int) -> bool:
    """At least so many `[names in brackets]`."""
    return len(re.findall(r"\[[^\[\]\n]*\]", response)) >= num_placeholders


def postscript(response: str, *, postscript_marker: str) -> bool:
    letters = [re.escape(letter) for letter in re.findall(r"\w", postscript_marker)]
    spelled = r"\.\s?".join(letters) + (r"\." if postscript_marker.endswith(".") else "")
    return re.search(spelled, response, re.IGNORECASE) is not None


def number_bullet_lists(response: str, *, num_bullets: int) -> bool:
    """Exactly so many lines begin with `* ` or `-`; `**bold**` is none."""
    return len(re.findall(r"^[ \t]*(?:\*[^*\n]|-)", response, re.MULTILINE)) == num_bullets


def constrained_response(response: str) -> bool:
    return any(f"My answer is {answer}." in response for answer in ("yes", "no", "maybe"))


def number_highlighted_sections(response: str, *, num_highlights: int) -> bool:
    """At least so many non-empty `*sections*`; `**bold**` ones count too."""
    bold = [text for text in re.findall(r"\*\*([^\n*]+)\*\*", response) if text.strip()]
    others = re.sub(r"\*\*[^\n*]+\*\*", "", response)
    light = [text for text in re.findall(r"\*([^\n*]+)\*", others) if text.strip()]
    return len(bold) + len(light) >= num_highlights


def multiple_sections(response: str, *, section_spliter: str, num_sections: int) -> bool:
    """At least so many headings such as `SECTION 1`."""
    return len(re.findall(rf"{re.escape(section_spliter.strip())}\s?\d+", response)) >= num_sections


def json_format(response: str) -> bool:
    """The whole is JSON, in a code fence or not."""
    try:
        json.loads(_FENCE.sub("", response.strip()))
    except (ValueError, RecursionError):
        return False
    return True


def title(response: str) -> bool:
    """A line holds a title in `<<double angular brackets>>`."""
    for line in response.splitlines():
        _, opening, rest = line.partition("<<")
        inside, closing, _ = rest.rpartition(">>")
        if opening and closing and inside.strip("<> "):
            return True
    return False


def two_responses(response: str) -> bool:
    """Two different ones with six asterisks between."""
    answers = [answer.strip() for answer in response.split("******")]
    kept = [answer for answer in answers if answer]
    return all(answers[1:-1]) and len(kept) == 2 and kept[0] != kept[1]


def repeat_prompt(response: str, *, prompt_to_repeat: str) -> bool:
    return response.strip().casefold().startswith(prompt_to_repeat.strip().casefold())


def end_phrase(response: str, *, end_phrase: str) -> bool:
    return response.strip().strip('"').casefold().endswith(end_phrase.strip().casefold())


def quotation(response: str) -> bool:
    """The whole stands in double quotes."""
    text = response.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def english_capital(response: str) -> bool:
    # langdetect knows words as they are mostly written.
    return response.isupper() and is_in_language(response.lower(), "en")


def english_lowercase(response: str) -> bool:
    return response.islower() and is_in_language(response, "en")


def capital_word_frequency(response: str, *, capital_frequency: int, capital_relation: str) -> bool:
    return _RELATIONS[capital_relation](count_capital_words(response), capital_frequency)


def no_comma(response: str) -> bool:
    return "," not in response


@lru_cache(maxsize=4096)
def _whole_word(word: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)


CHECKS: dict[str, Callable[..., bool]] = {
    "keywords:existence": contains_keywords,
    "keywords:frequency": keyword_frequency,
    "keywords:forbidden_words": lacks_words,
    "keywords:letter_frequency": letter_frequency,
    "language:response_language": response_language,
    "length_constraints:number_sentences": number_sentences,
    "length_constraints:number_paragraphs": number_paragraphs,
    "length_constraints:number_words": number_words,
    "length_constraints:nth_paragraph_first_word": nth_paragraph_first_word,
    "detectable_content:number_placeholders": number_placeholders,
    "detectable_content:postscript": postscript,
    "detectable_format:number_bullet_lists": number_bullet_lists,
    "detectable_format:constrained_response": constrained_response,
    "detectable_format:number_highlighted_sections": number_highlighted_sections,
    "detectable_format:multiple_sections": multiple_sections,
    "detectable_format:json_format": json_format,
    "detectable_format:title": title,
    "combination:two_responses": two_responses,
    "combination:repeat_prompt": repeat_prompt,
    "startend:end_checker": end_phrase,
    "startend:quotation": quotation,
    "change_case:english_capital": english_capital,
    "change_case:english_lowercase": english_lowercase,
    "change_case:capital_word_frequency": capital_word_frequency,
    "punctuation:no_comma": no_comma,
}
"""IFEval's id -> its check."""
