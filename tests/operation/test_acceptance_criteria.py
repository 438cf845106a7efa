from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import hessian_surgery as hs
from conftest import operate
from hessian_surgery.evidence.asked import Asked
from hessian_surgery.evidence.before_after import BeforeAfter
from hessian_surgery.model.evaluation import Answers
from hessian_surgery.operation.acceptance_criteria import as_criteria, check_criteria, read_criteria
from hessian_surgery.operation.accepted import with_criteria
from hessian_surgery.operation.findings import make_findings


def criteria(tmp_path, content):
    path = tmp_path / "criteria.toml"
    path.write_text(content)
    return read_criteria(path)


def unmet(found, seen):
    """What is said of each criterion that is not met."""
    return [one.failure for one in check_criteria(found, seen) if not one.met]


def images(before, after):
    """Ten images of each of two classes, of which so many are right."""
    labels = torch.arange(2).repeat_interleave(10)

    def answers(right):
        predicted = torch.cat([torch.where(torch.arange(10) < n, j, 1 - j) for j, n in enumerate(right)])
        return Answers(predicted, torch.ones(20), torch.zeros(20))

    return BeforeAfter(("cat", "dog"), torch.arange(20), labels, answers(before), answers(after))


def test_each_criterion_that_is_not_met_is_named(tmp_path):
    found = criteria(tmp_path, "minimum_accuracy = 0.6\nmaximum_drop = 0.1\n[classes.dog]\nmaximum_drop = 0.3\n")
    assert unmet(found, images((9, 9), (8, 6))) == []
    assert unmet(found, images((9, 9), (7, 5))) == [
        "cat: lost 20.0 pp, maximum_drop is 10 pp",
        "dog: accuracy 50.0 %, minimum_accuracy is 60 %",
        "dog: lost 40.0 pp, maximum_drop is 30 pp",
    ]


def test_text_may_have_a_unit(tmp_path):
    text = "minimum_accuracy = '60%'\nmaximum_drop = '3pp'\n[classes.dog]\nmaximum_drop = '0.05'\n"
    number = "minimum_accuracy = 0.6\nmaximum_drop = 0.03\n[classes.dog]\nmaximum_drop = 0.05\n"
    assert criteria(tmp_path, text) == criteria(tmp_path, number)


def test_a_limit_that_is_just_met_is_met(tmp_path):
    found = criteria(tmp_path, "minimum_accuracy = 0.7\nmaximum_drop = 0.2\n")
    assert unmet(found, images((9, 9), (7, 7))) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "asks for nothing; give minimum_accuracy or maximum_drop"),
        ("minimum_acuracy = 0.5", "minimum_acuracy in .* is no criterion; give minimum_accuracy, maximum_drop or"),
        ("minimum_accuracy = 'half'", "minimum_accuracy: got 'half', which is not a number"),
        ("minimum_accuracy = '60'", "minimum_accuracy: got 60; write 60% or 0.6"),
        ("minimum_accuracy = '600%'", "minimum_accuracy is 6.0 in .*; give a fraction from 0 to 1"),
        ("[classes.cat]\nmaximum_drop = '0.5'", "classes.cat.maximum_drop: got 0.5; that is 50 pp; write 50pp"),
        ("minimum_accuracy = 60", "minimum_accuracy is 60 in .*; give a fraction from 0 to 1"),
        ("maximum_drop = true", "maximum_drop is True"),
        ("maximum_drop = nan", "maximum_drop is nan"),
        ("maximum_drop = -0.1", "maximum_drop is -0.1"),
        ("[classes.cat]\nminimum = 0.5", r"classes.cat.minimum in .* is no criterion"),
        ("classes = 3", r"classes is 3 in .*; give a table for each class, such as \[classes.cat\]"),
        ("[classes]\ncat = 0.5", "classes is {'cat': 0.5}"),
        ("minimum_accuracy = ", "cannot be read as TOML"),
    ],
)
def test_anything_else_is_refused(tmp_path, content, message):
    with pytest.raises(hs.InputError, match=f"accept: .*{message}"):
        criteria(tmp_path, content)


def test_a_mapping_holds_what_a_file_holds(tmp_path):
    held = {"minimum_accuracy": "60%", "classes": {"dog": {"maximum_drop": 0.05}}}
    path = tmp_path / "criteria.toml"
    path.write_text("minimum_accuracy = '60%'\n[classes.dog]\nmaximum_drop = 0.05\n")
    read = read_criteria(path)
    assert [as_criteria(given, ("cat", "dog")) for given in (held, read, path, str(path))] == [read] * 4
    assert held["minimum_accuracy"] == "60%"
    assert as_criteria(None, ("cat", "dog")) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "the mapping asks for nothing"),
        ({"maximum": 0.1}, "maximum in the mapping is no criterion"),
        ({"maximum_drop": 3}, "maximum_drop is 3 in the mapping; give a fraction"),
        ({"classes": {"cow": {"maximum_drop": 0.1}}}, "got 'cow', which is no class"),
        (0.03, "got float; give a mapping, or the path of a TOML file"),
    ],
)
def test_anything_else_is_refused_from_python_too(given, message):
    with pytest.raises(hs.InputError, match=f"accept: .*{message}"):
        as_criteria(given, ("cat", "dog"))


def test_operate_holds_criteria_against_the_held_out_images(trained, digits_parts):
    kept = {name: value.clone() for name, value in trained.state_dict().items()}
    with pytest.raises(hs.InputError, match="accept: got 'cow'"):
        operate(trained, digits_parts, hs.SurgeryConfig(), accept={"classes": {"cow": {"maximum_drop": 0.1}}})
    assert all(torch.equal(kept[name], value) for name, value in trained.state_dict().items())
    given = {"maximum_drop": 1.0, "classes": {"9": {"minimum_accuracy": 1.0}}}
    outcome = operate(trained, digits_parts, hs.SurgeryConfig(), accept=given)
    assert outcome.accepted is False
    (failed,) = [one for one in outcome.findings.criteria if not one.met]
    assert (failed.name, failed.asked) == ("9", 1.0)
    assert outcome.acceptance["failed"] == [failed.failure]
    assert "1 of 11 criteria not met" in outcome.summary()
    assert with_criteria(outcome, as_criteria({"maximum_drop": 1.0}, digits_parts.heldout.classes)).accepted


def test_a_class_that_there_is_not_is_refused(tmp_path):
    found = criteria(tmp_path, "[classes.cow]\nminimum_accuracy = 0.5")
    with pytest.raises(hs.InputError, match="accept: got 'cow', which is no class; there are cat, dog"):
        found.check_names(("cat", "dog"))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(hs.InputError, match=r"accept: .*none.toml cannot be read as TOML"):
        read_criteria(tmp_path / "none.toml")


def test_advice_names_options_that_are_predicted_to_meet_a_criterion(tmp_path):
    """The point nearest to the run, other than what was done or would do nothing; else a target."""
    found = criteria(tmp_path, "minimum_accuracy = 0.6\nmaximum_drop = 0.1\n")
    heldout = images((9, 5), (7, 5))
    base, done = [0.9, 0.5], [0.75, 0.5]
    points = [
        {"objective": "sigma", "budget": 0.001, "per_class": done},
        {"objective": "sigma", "budget": 0.002, "per_class": base},
        {"objective": "sigma", "budget": 0.01, "per_class": [0.82, 0.58]},
        {"objective": "sigma", "budget": 0.02, "per_class": [0.81, 0.58]},
        {"objective": "worst", "budget": 0.005, "per_class": [0.7, 0.62]},
    ]
    front = {"base": {"per_class": base}, "points": points}
    asked = Asked(budget=0.002, limits={"dog": 0.1})
    findings = make_findings(heldout, heldout, asked, (), 0)
    record = SimpleNamespace(predicted=done)
    fields = dict.fromkeys(("config", "ended", "structure", "choices", "split", "environment"))
    outcome = hs.Outcome(
        findings=findings, iterations=(record,), front=front, seconds=0, base_weights={}, weights={}, **fields
    )
    accepted = with_criteria(outcome, found)
    assert [one.met for one in accepted.findings.criteria] == [True, False, False, True]
    cat, dog = (one.advice for one in accepted.findings.criteria if not one.met)
    assert cat == "the plan kept to it on the calibration images: give more of these, or plan with a smaller drop"
    assert dog == "target='worst', budget=0.005 is predicted to meet it (62.0 %)"
    assert accepted.acceptance["failed"] == unmet(found, heldout)
    assert accepted.findings.verdict.tone == "mixed"
    without = with_criteria(replace(outcome, front=None), found)
    cat, dog = (one.advice for one in without.findings.criteria if not one.met)
    assert cat == "the plan kept to it on the calibration images: give more of these, or plan with a smaller drop"
    assert dog == "the plan aimed at it: give limits or budget more room, or ask for less"
