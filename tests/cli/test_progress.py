import io
from dataclasses import replace

import pytest
from rich.console import Console

import hessian_surgery as hs
from conftest import operate
from hessian_surgery.cli.progress import TerminalObserver
from hessian_surgery.cli.tables import print_findings
from hessian_surgery.data.sources import Parts
from hessian_surgery.evidence.deciles import shown_classes
from hessian_surgery.operation.iteration import iterate, start
from hessian_surgery.operation.problem import prepare
from hessian_surgery.report.markdown import to_markdown


@pytest.fixture
def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=80, no_color=True)


def test_the_bar_shows_stage_and_iteration(terminal, trained, digits_parts, quick):
    with TerminalObserver(terminal, quick.iterations) as observer:
        outcome = operate(trained, digits_parts, quick, observer=observer)
    text = terminal.file.getvalue()
    assert "iteration 1/3" in text
    assert "sensitivity" in text
    for record in outcome.iterations:
        assert f"{record.iteration}/3 {'accepted' if record.accepted else 'rolled back'}" in text
    print_findings(terminal, outcome.findings)
    assert outcome.verdict.sentence.split(":")[0] in terminal.file.getvalue()


class Positions(TerminalObserver):
    """Keeps where the bar stood after each stage, and the text beside it."""

    def __init__(self, console, iterations):
        super().__init__(console, iterations)
        self.seen = []

    def stage(self, name, done, total):
        super().stage(name, done, total)
        task = self._progress.tasks[0]
        self.seen.append((task.completed, task.description))


@pytest.mark.parametrize("directions", ["class-gradients", "both"])
@pytest.mark.parametrize("crossed", [False, True])
def test_the_bar_of_one_iteration_only_goes_forward(
    terminal, trained, digits_parts, digits_images, directions, crossed
):
    config = hs.SurgeryConfig(directions=directions, search=hs.SpikeSearch(hessian_samples=64))
    data = digits_images if crossed else digits_parts.calibration
    problem, _ = prepare(trained, digits_parts.training, data, config)
    observer = Positions(terminal, config.iterations)
    iterate(problem, start(problem), observer)
    places = [place for place, _ in observer.seen]
    assert places == sorted(places)
    assert places[0] < 0.1
    assert places[-1] == pytest.approx(1.0)
    told = [text for _, text in observer.seen if text.startswith("directions")]
    units = (50 if crossed else 20) + (9 if directions == "both" else 0)
    assert told == [f"directions {i}/{units}" for i in range(1, units + 1)]


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
