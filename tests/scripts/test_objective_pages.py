"""recipes/objective/README.md is what scripts/objective_pages.py writes, and leaves nothing out."""

import re
import runpy
from pathlib import Path

import pytest

from rlvr.commands.compose import YamlSource

PAGES = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "objective_pages.py"))
CHOICES = YamlSource().choices("objective")
TEXT = PAGES["PAGE"].read_text(encoding="utf-8")


def test_the_page_is_up_to_date():
    assert PAGES["page"]() + "\n" == TEXT, "run scripts/objective_pages.py"


@pytest.mark.parametrize("name", list(CHOICES))
def test_a_method_has_its_formula_source_defaults_neighbour_and_command(name):
    (section,) = re.findall(rf"^## {name}\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S)
    assert re.search(r"^loss +=", section, re.M)
    assert re.search(r"^- Source: .*(arXiv \d{4}\.\d{4,5}|doi 10\.)", section, re.M)
    assert re.search(r"^- Defaults: \S", section, re.M)
    neighbours = re.findall(r"(?:Differs from|from) (\w+):", section)
    assert neighbours
    assert set(neighbours) <= set(CHOICES)
    assert f"`rlvr train recipe=quickstart objective={name}`" in section


def test_a_head_comment_falls_into_its_parts():
    lines = ["X: does", "what it does.", "loss = 1", "and more", "Source: arXiv 1", "Differs from y: all"]
    assert PAGES["paragraphs"](lines) == {
        "": "X: does what it does.",
        "loss": "loss = 1 and more",
        "Source": "Source: arXiv 1",
        "Differs from": "Differs from y: all",
    }
