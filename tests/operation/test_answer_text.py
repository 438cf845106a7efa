import io
import re
import sys
from dataclasses import fields, is_dataclass, replace

import pytest
from rich.console import Console
from runs import HOSTILE, hundred_classes, renamed

import hessian_surgery as hs
from conftest import operate
from hessian_surgery.cli.tables import print_findings
from hessian_surgery.model.smallnet import SmallNet
from hessian_surgery.operation.answer_text import ASKED, CHANGED, COSTS, answer_html
from hessian_surgery.report.card import model_card
from hessian_surgery.report.run import load_run


@pytest.fixture(scope="module")
def outcome(_trained, digits_parts):
    module = SmallNet(10)
    module.load_state_dict(_trained)
    return operate(module, digits_parts, hs.SurgeryConfig(), front=True)


@pytest.fixture(scope="module")
def hundred():
    module, parts = hundred_classes()
    return hs.operate(module, **parts)


def records(value, found):
    """Every dataclass that a value holds, however deep."""
    if is_dataclass(value) and not isinstance(value, type):
        found.append(value)
        for own in fields(value):
            records(getattr(value, own.name), found)
    elif isinstance(value, (list, tuple)):
        for one in value:
            records(one, found)
    return found


def test_reprs_are_short(outcome, hundred):
    for one in (outcome, hundred):
        assert len(repr(one)) < 500
        assert "\n" not in repr(one)
        assert one.verdict.headline in repr(one)
        public = [record for record in records(one, []) if type(record).__name__ in hs.__all__]
        assert len(public) > 10
        assert [type(record) for record in public if len(repr(record)) >= 500] == []


def test_the_summary_is_the_answer_in_a_few_lines(outcome):
    lines = outcome.summary().splitlines()
    assert lines[0] == outcome.verdict.headline
    assert lines[1] == outcome.findings.plain
    assert [line for line in lines if line in (ASKED, CHANGED, COSTS)] == [ASKED, CHANGED, COSTS]
    assert any("budget, at most 0.2 pp" in line for line in lines)
    assert len(lines) < 25


def test_rows_are_plain_and_agree_with_the_tests(outcome):
    rows = outcome.rows()
    before, after = outcome.findings.heldout.metrics()
    assert [row["class"] for row in rows] == list(outcome.findings.heldout.classes)
    assert [row["after"] for row in rows] == after.per_class
    for row, test in zip(rows, outcome.findings.tests.per_class, strict=True):
        assert {type(value) for value in row.values()} <= {str, int, float, type(None)}
        assert row["change"] == pytest.approx((test.gained - test.lost) / row["count"])
        assert row["after_low"] <= row["after"] <= row["after_high"]
        assert (row["p_holm"] is None) == (not test.claim)
    assert sum(row["count"] for row in rows) == sum(before.count)


def test_a_table_is_a_data_frame(outcome):
    pandas = pytest.importorskip("pandas", reason="pandas is optional")
    frame = outcome.table()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["class"]) == [row["class"] for row in outcome.rows()]


def test_without_pandas_the_error_names_rows(outcome, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(hs.InputError, match=r"needs pandas, .*rows\(\)"):
        outcome.table()


def test_a_notebook_shows_the_answer_first_and_every_class(outcome):
    page = outcome._repr_html_()
    places = [page.index(part) for part in (outcome.verdict.headline, ASKED, CHANGED, COSTS, "<table", "<ul class=")]
    assert places == sorted(places)
    assert page.count('<th scope="row">') == 10


def test_a_notebook_reads_no_name_as_markup(trained, digits_parts):
    shown = answer_html(operate(trained, renamed(digits_parts, HOSTILE), hs.SurgeryConfig()).findings)
    assert "<script" not in shown
    assert "<img" not in shown
    assert shown.count("&lt;/script&gt;") >= 1


def test_of_many_classes_a_notebook_shows_those_that_changed_most(hundred):
    page = hundred._repr_html_()
    assert 1 <= page.count('<th scope="row">') <= 20
    assert "of 100 classes" in page
    assert len(hundred.rows()) == 100


def test_an_answer_without_any_claim_is_still_told(outcome):
    few = replace(outcome.findings, simpler=None, changed=None)
    assert CHANGED not in answer_html(few)


def test_reports_of_other_data_speak_of_samples(hundred, tmp_path):
    hundred.save(tmp_path)
    hs.write_report(tmp_path)
    run = load_run(tmp_path)
    page = re.sub(r"<(script|style).*?</\1>", "", (tmp_path / "report.html").read_text(), flags=re.DOTALL)
    console = Console(record=True, width=120, file=io.StringIO())
    print_findings(console, hundred.findings)
    said = [hundred.summary(), repr(hundred), hundred._repr_html_(), page, model_card(run), console.export_text()]
    assert run.findings.noun == "samples"
    assert run.findings.warnings == hundred.findings.warnings
    assert all("samples" in text for text in said[1:])
    for text in said:
        assert re.findall(r".{30}\bimages?\b.{9}", text) == []


def test_reports_of_images_speak_of_images(outcome):
    assert outcome.findings.noun == "images"
    assert "images of 10 classes" in repr(outcome)
