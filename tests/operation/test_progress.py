import io
import re
from functools import partial

import pytest
import torch
from rich.console import Console

import hessian_surgery as hs
from conftest import operate, points
from hessian_surgery.operation import progress
from hessian_surgery.operation.cost import estimate_cost, try_operation
from hessian_surgery.operation.expected import in_order
from hessian_surgery.operation.observer import Both, Observer
from hessian_surgery.operation.progress import ShownProgress, clock_time
from hessian_surgery.operation.schedule import Expected


@pytest.fixture
def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=80, no_color=True)


@pytest.fixture
def file():
    return Console(file=io.StringIO(), force_terminal=False, width=80, no_color=True)


class Told(Observer):
    """Keeps what it is told."""

    def __init__(self):
        self.stages = []
        self.expected = []

    def expect(self, stages, in_seconds=True):
        assert not self.stages
        self.expected = stages()

    def stage(self, name, done, total):
        self.stages.append((name, done, total))

    @property
    def names(self):
        """Names of the stages in the order in which they began."""
        pairs = zip([("", 0, 1), *self.stages], self.stages, strict=False)
        return [name for (last, before, _), (name, done, _) in pairs if name != last or done < before]


SPIKES = hs.SpikeSearch(hessian_samples=64)


@pytest.mark.parametrize(
    "config",
    [
        hs.SurgeryConfig(recalibrate=True),
        hs.SurgeryConfig(directions="both", search=SPIKES),
        hs.LoopConfig(iterations=1, search=SPIKES),
        hs.LoopConfig(iterations=1, search=SPIKES, sensitivity="differences"),
    ],
)
@pytest.mark.parametrize("judged", ["heldout", "folds"])
def test_the_announced_stages_are_those_of_the_progress(trained, digits_parts, config, judged):
    """`--dry-run` names them too, and each begins with nothing done."""
    told = Told()
    parts = digits_parts
    heldout, folds = (parts.heldout, None) if judged == "heldout" else (None, 2)
    data = {"training_data": parts.training, "calibration_data": parts.calibration, "heldout_data": heldout}
    hs.operate(trained, **data, folds=folds, config=config, front=True, observer=told)
    assert told.names == [stage.name for stage in told.expected]
    assert all(stage.seconds > 0 for stage in told.expected)
    classifier = hs.Classifier(trained)
    trial = try_operation(classifier, parts.calibration, config)
    cost = estimate_cost(classifier, parts.training, parts.calibration, config, folds, heldout, trial)
    assert {stage.name for stage in cost.stages if stage.seconds > 0} == set(told.names)
    begun = {}
    for name, done, _ in told.stages:
        begun.setdefault(name, done)
    assert set(begun.values()) == {0}


@pytest.mark.parametrize("spikes", [None, 3])
def test_the_stages_of_a_diagnosis_are_announced(trained, digits_parts, spikes):
    told = Told()
    data = {"training_data": digits_parts.training, "calibration_data": digits_parts.calibration}
    hs.diagnose(trained, **data, config=hs.SurgeryConfig(search=SPIKES), spikes=spikes, observer=told)
    assert told.names == ["prepare", *(["spikes", "sensitivity"] if spikes else []), "forecast"]
    assert told.names == [stage.name for stage in told.expected]
    assert all(stage.seconds > 0 for stage in told.expected)


def test_seconds_are_shared_out_among_iterations_and_folds():
    seconds = {"prepare": 1.0, "directions": 12.0, "plan": 24.0, "front": 4.0, "report": 2.0}
    for iterations, folds in ((1, None), (3, None), (2, 3)):
        stages = in_order(seconds, iterations, folds)
        total = {name: sum(stage.seconds for stage in stages if stage.name == name) for name in seconds}
        assert total == pytest.approx(seconds)
        assert len(stages) == 1 + (folds or 1) * (2 * iterations + 1 + (folds is not None)) + 1


def test_the_bar_shows_stage_iteration_and_time_left(terminal, trained, digits_parts, quick):
    with ShownProgress(terminal) as shown:
        outcome = operate(trained, digits_parts, quick, observer=shown)
    text = terminal.file.getvalue()
    assert "iteration 1/3" in text
    assert "sensitivity" in text
    assert re.search(r"left \d:\d\d:\d\d", text)
    assert "left 0:00:00" not in text
    assert "-:--" not in text
    for record in outcome.iterations:
        assert f"{record.iteration}/3 {'accepted' if record.accepted else 'rolled back'}" in text


def test_where_output_is_no_terminal_each_stage_has_a_line(file, trained, digits_parts):
    with ShownProgress(file, ["three words first"]) as shown:
        operate(trained, digits_parts, hs.SurgeryConfig(), observer=shown)
    lines = file.file.getvalue().splitlines()
    assert lines[0] == "three words first"
    names = [line.split(" ")[0] for line in lines if " % done · elapsed 0:00:0" in line and " · left 0:0" in line]
    assert names == ["prepare", "directions", "plan", "measure", "report"]
    assert len(lines) == 7  # and that of the iteration


def test_lines_come_as_time_passes(file, monkeypatch):
    monkeypatch.setattr(progress, "BETWEEN_LINES", 0.01)
    with ShownProgress(file) as shown:
        shown._ticker.join(0.1)
        assert file.file.getvalue() == ""  # nothing before the input has been checked
        shown.expect(lambda: [Expected("spikes", 1.0)])
        shown.stage("spikes", 3, 30)
        shown._ticker.join(0.1)
    lines = file.file.getvalue().splitlines()
    assert len(lines) > 2
    assert all(line.startswith("spikes 3/30 · ") for line in lines)
    shown._ticker.join()


@pytest.mark.parametrize("wrong", ["heldout", "training", "recalibrate", "biases", "class"])
def test_errors_come_before_the_first_line(file, trained, digits_parts, wrong):
    parts = digits_parts
    other = parts.heldout.subset((parts.heldout.labels != 4).nonzero().squeeze(1))
    training = parts.heldout if wrong == "training" else parts.training
    choices = {
        "recalibrate": {"recalibrate": True, "parameters": "features*"},
        "biases": {"directions": "biases", "parameters": "features*"},
        "class": {"protect": ("x",)},
    }
    call = partial(
        hs.operate,
        trained,
        training_data=training,
        calibration_data=parts.calibration,
        heldout_data=other if wrong == "heldout" else parts.heldout,
        config=hs.SurgeryConfig(**choices.get(wrong, {})),
    )
    words = {"heldout": "heldout_data", "training": "training", "class": "protect"}.get(wrong, "got")
    with pytest.raises(hs.InputError, match=words), ShownProgress(file, ["a remark"]) as shown:
        call(observer=shown)
    assert file.file.getvalue() == ""


def test_progress_in_python_goes_to_stderr(capsys, trained, digits_parts):
    operate(trained, digits_parts, hs.SurgeryConfig(), progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "directions" in captured.err
    assert "report" in captured.err


def test_a_bar_and_an_observer_are_both_told(capsys, trained, digits_parts):
    own = Told()
    operate(trained, digits_parts, hs.SurgeryConfig(directions="biases"), progress=True, observer=own)
    assert own.expected
    assert own.names[-1] == "report"
    assert "report" in capsys.readouterr().err


def test_both_are_told_everything_and_the_trial_is_made_once():
    told, trials = [], []

    def trial():
        trials.append(1)
        return [Expected("plan", 1.0)]

    def remember(name, *given):
        told.append(name)
        if name == "expect":
            given[0]()

    class Every(Observer):
        pass

    events = {"remark": ("text",), "reading": (1, 2), "expect": (trial,), "fold": (1, 2)}
    events |= {"stage": ("plan", 0, 1), "iteration": (None,), "end": (None,)}
    for name in events:
        setattr(Every, name, lambda self, *given, name=name: remember(name, *given))
    assert set(events) == {name for name in vars(Observer) if not name.startswith("_")}
    for name, given in events.items():
        getattr(Both(Every(), Every()), name)(*given)
    assert told == [name for name in events for _ in range(2)]
    assert len(trials) == 1


def test_time_left_is_never_nothing():
    assert clock_time(0.0) == "0:00:01"
    assert clock_time(61.2) == "0:01:02"
    assert clock_time(61.9, up=False) == "0:01:01"


@pytest.mark.parametrize(("seconds", "said"), [(3000.0, False), (4000.0, True)])
def test_what_helps_is_said_if_more_than_an_hour_is_expected(seconds, said):
    console = Console(file=io.StringIO(), width=80)
    with ShownProgress(console, if_long="give --quick") as shown:
        shown.expect(lambda: [Expected("plan", seconds)])
    assert ("give --quick" in console.file.getvalue()) == said


def test_reading_shows_the_share_that_is_done():
    told = []

    class Reader(hs.Observer):
        def reading(self, done, total):
            told.append((done, total))

    parts = {f"{name}_data": points(100, seed) for seed, name in enumerate(("training", "calibration"))}
    many = points(1000, 3)
    config = hs.SurgeryConfig(iterations=1, directions="biases")
    hs.operate(torch.nn.Linear(2, 3), **parts, heldout_data=many, config=config, observer=Reader())
    assert (0, 300) in told
    assert [done for done, total in told if total == 3000] == list(range(0, 3000, told[-1][0] - told[-2][0]))
    shown = ShownProgress(Console(file=io.StringIO()))
    shown.reading(1024, 50_000)
    assert shown.line().startswith("reading 1,024 of 50,000")
