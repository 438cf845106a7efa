"""Rows beside the paper, and the pages that they make."""

from pathlib import Path

import pytest

from hessian_surgery.reproduce.page import item_page, number, overview, row_cells
from hessian_surgery.reproduce.results import write_results
from hessian_surgery.reproduce.row import change_row, claim_row, shown_row, unjudged


def test_a_change_is_reproduced_if_it_has_the_papers_sign_beyond_chance():
    down = change_row("σ", "pp", -3.05, [-1.0, -2.0], [(-2.0, -0.5), (-3.0, -1.5)])
    assert (down.verdict, down.mean, down.interval) == ("reproduced", -1.5, (-2.5, -1.0))
    assert change_row("σ", "pp", 3.05, [-1.0], [(-2.0, -0.5)]).verdict == "not reproduced"
    assert change_row("σ", "pp", -3.05, [-1.0], [(-2.0, 0.5)]).verdict == "not reproduced"
    assert change_row("σ", "pp", 3.05, [1.0], [(0.5, 2.0)]).verdict == "reproduced"


def test_spread_is_the_standard_deviation_over_splits():
    assert shown_row("λ", "", None, [1.0, 3.0], "why").spread == pytest.approx(2**0.5)
    assert shown_row("λ", "", None, [1.0], "why").spread is None


def test_a_page_shows_every_row_with_its_verdict_and_its_rule():
    rows = [
        claim_row("a | b", "%", 12.0, [10.0, 11.0], False, "ours is above 11", (9.0, 12.0)),
        unjudged(claim_row("c", "", None, [1.0], True, "any"), "it was quick"),
    ]
    content = {
        "item": "main",
        "paper": "table 4",
        "title": "surgery",
        "command": "hessian-surgery reproduce main",
        "splits": 2,
        "seconds": 12.3,
        "processes": 4,
        "environment": {"device": "cpu"},
        "rows": [row.as_dict() for row in rows],
    }
    page = item_page(content, figure=True)
    assert page.startswith("# Table 4: surgery\n")
    assert "over them; 12 s on cpu, added over runs, up to 4 of which shared it;" in " ".join(page.split())
    assert "| a \\| b, % | 12.0 | 10.5 ± 0.71 [9.00, 12.0] | not reproduced |" in page
    assert "| c | – | 1.00 | not comparable |" in page
    assert "- not reproduced: rule: ours is above 11" in page
    assert "- not comparable: it was quick" in page
    assert "![surgery](main.svg)" in page
    assert "| [main](main.md) | table 4 | 0 | 1 | 1 |" in overview([content])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00"),
        (-0.0134, "-0.013"),
        (8.568, "8.57"),
        (84.93, "84.9"),
        (828.6, "829"),
        (23528522.0, "2.35e+07"),
    ],
)
def test_numbers_have_three_digits_or_so(value, text):
    assert number(value) == text


def test_what_is_rounding_beside_mean_or_spread_is_zero():
    row = {"label": "gap", "unit": "pp", "paper": None}
    assert row_cells(row | {"mean": -7.1e-16, "spread": 11.8}) == ("gap, pp", "–", "0.00 ± 11.8")
    assert row_cells(row | {"mean": 0.049, "spread": 8e-9}) == ("gap, pp", "–", "0.049 ± 0.00")
    assert row_cells(row | {"mean": 0.049, "spread": 8e-5}) == ("gap, pp", "–", "0.049 ± 8e-05")


def test_committed_pages_are_made_from_committed_results(tmp_path):
    committed = Path(__file__).parents[2] / "docs/results"
    for path in committed.glob("*.json"):
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    assert write_results(tmp_path)
    for path in committed.glob("*.md"):
        assert (tmp_path / path.name).read_text(encoding="utf-8") == path.read_text(encoding="utf-8"), path
