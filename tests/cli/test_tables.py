import io
from dataclasses import replace

import pytest
from rich.console import Console

import hessian_surgery as hs
from conftest import operate
from hessian_surgery.cli.tables import describe_choices, print_cost, print_findings
from hessian_surgery.data.sources import Parts
from hessian_surgery.evidence.deciles import shown_classes
from hessian_surgery.operation.cost import estimate_cost
from hessian_surgery.report.markdown import to_markdown


@pytest.fixture
def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=80, no_color=True)


def test_of_many_classes_those_that_gained_and_lost_most_are_listed():
    before = [0.5] * 100
    after = [0.5 + (i - 50) / 100 for i in range(100)]
    assert shown_classes(before, after) == [*range(99, 89, -1), *range(9, -1, -1)]
    assert shown_classes(before, before) == []
    assert shown_classes(before[:40], after[:40]) == list(range(40))


def test_class_names_are_not_read_as_markup(terminal, trained, digits_parts, quick):
    names = ("[red]", "[/]", "a|<b>", *"defghij")
    parts = digits_parts.training, digits_parts.calibration, digits_parts.heldout
    outcome = operate(trained, Parts(*(replace(part, classes=names) for part in parts)), quick)
    print_findings(terminal, outcome.findings)
    assert all(name in terminal.file.getvalue() for name in names)
    text = to_markdown(outcome.findings, outcome.ended)
    assert "| \\[red\\] |" in text
    assert "<" not in text.replace("\\<", "")


@pytest.mark.parametrize(("noun", "others"), [("images", "texts"), ("texts", "images")])
def test_a_cost_speaks_of_what_the_data_are(terminal, trained, digits_parts, quick, noun, others):
    parts = digits_parts.training, digits_parts.calibration
    print_cost(terminal, estimate_cost(hs.Classifier(trained), *parts, quick), noun)
    shown = terminal.file.getvalue()
    assert f"gradients of training {noun}" in shown
    assert f"passes over the calibration {noun}" in shown
    assert others not in shown


def test_what_moved_and_the_stricter_limit_are_named(trained, digits_parts):
    config = hs.SurgeryConfig(iterations=1, directions="biases", budget=0.02)
    outcome = operate(trained, digits_parts, config, accept={"maximum_drop": "3pp"})
    assert outcome.findings.changed.only_biases
    said = describe_choices(outcome.choices | {"directions": "class-gradients"}, outcome.findings)
    assert said.startswith("the head's biases alone, giving up at most 2 pp of accuracy; protected (at most 3.0 pp")
