"""Operations and comparisons name the images that their parts share, and refuse too many."""

from dataclasses import replace

import pytest
import torch

import hessian_surgery as hs
from conftest import operate
from hessian_surgery.data.leaks import ON_TRAINING, hash_part
from hessian_surgery.data.splits import join_sets
from hessian_surgery.operation.leak_check import check_leaks
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.problem import prepare
from hessian_surgery.report.run import run_of
from hessian_surgery.report.run_page import run_page

ONE_STEP = hs.LoopConfig(iterations=1, search=hs.SpikeSearch(spikes=3, hessian_samples=64))


class Heard(Observer):
    def __init__(self):
        self.remarks = []

    def remark(self, text):
        self.remarks.append(text)


def with_images_of(data, other, count):
    """The data with the first images of another set at its end."""
    inputs = torch.cat([data.inputs(), other.inputs()[:count]])
    return hs.as_labelled((inputs, torch.cat([data.labels, other.labels[:count]])), data.classes)


def test_a_few_shared_images_are_a_warning_everywhere(trained, digits_parts):
    parts = replace(digits_parts, heldout=with_images_of(digits_parts.heldout, digits_parts.calibration, 2))
    parts = replace(parts, calibration=with_images_of(parts.calibration, digits_parts.training, 1))
    heard = Heard()
    outcome = operate(trained, parts, ONE_STEP, observer=heard)
    wanted = [
        "1 image of calibration_data is in training_data as well: index 538 (there ",
        "2 images of heldout_data are in calibration_data as well: index 540 (there 0), 541 (there 1)",
    ]
    for sentence in wanted:
        assert any(warning.startswith(sentence) for warning in outcome.findings.warnings)
        assert any(remark.startswith(sentence) for remark in heard.remarks)
        assert any(warning.startswith(sentence) for warning in outcome.as_dict()["warnings"])
        assert sentence in run_page(run_of(outcome, outcome.patch(), {}))
    assert [(leak["first"], leak["second"]) for leak in outcome.split["shared"]] == [
        ("training_data", "calibration_data"),
        ("calibration_data", "heldout_data"),
    ]
    assert (outcome.split["training"], outcome.split["compared"]) == (248, 248)


@pytest.mark.parametrize(
    ("part", "source", "message"),
    [
        ("heldout", "calibration", "heldout_data: 6 images are in calibration_data as well"),
        ("heldout", "training", "heldout_data: 6 images are in training_data as well"),
        ("calibration", "training", "calibration_data: 6 images are in training_data as well"),
    ],
)
def test_more_than_one_percent_is_refused(trained, digits_parts, part, source, message):
    leaky = with_images_of(getattr(digits_parts, part), getattr(digits_parts, source), 6)
    before = {name: t.clone() for name, t in trained.state_dict().items()}
    with pytest.raises(hs.InputError, match=message):
        operate(trained, replace(digits_parts, **{part: leaky}), ONE_STEP)
    assert all(torch.equal(t, before[name]) for name, t in trained.state_dict().items())


def test_calibration_on_training_images_must_be_asked_for(trained, digits_parts):
    """Then it is said, and held-out images must still be others."""
    parts = replace(digits_parts, calibration=digits_parts.training)
    with pytest.raises(hs.InputError, match="calibration_data: 248 images are in training_data as well"):
        operate(trained, parts, ONE_STEP)
    meant = replace(ONE_STEP, calibrate_on_training=True, calibration_cap=15)
    heard = Heard()
    outcome = operate(trained, parts, meant, observer=heard)
    assert ON_TRAINING in heard.remarks
    assert ON_TRAINING in outcome.findings.warnings
    assert max(outcome.findings.calibration.metrics()[0].count) == 15
    assert outcome.split["shared"] == []
    for source in (digits_parts.training, outcome_images(digits_parts.training, outcome)):
        leaky = with_images_of(digits_parts.heldout, source, 6)
        with pytest.raises(hs.InputError, match="heldout_data: 6 images are in training_data as well"):
            operate(trained, replace(parts, heldout=leaky), meant)
    with pytest.raises(hs.InputError, match="folds: got 5, but the calibration images are training images"):
        hs.operate(trained, training_data=parts.training, calibration_data=parts.calibration, folds=5, config=meant)


def outcome_images(data, outcome):
    """The images that an operation was calibrated on."""
    return data.subset(torch.isin(data.index, outcome.findings.calibration.index).nonzero()[:, 0])


def test_only_drawn_training_images_are_compared_if_they_are_not_in_memory(trained, digits_parts):
    training = replace(digits_parts.training, in_memory=False)
    problem, _ = prepare(trained, training, digits_parts.calibration, ONE_STEP)
    batch = problem.finder.data
    leaky = with_images_of(digits_parts.heldout, batch, 1)
    found = check_leaks(problem, training, leaky)
    assert (found.training, found.compared) == (248, 64)
    assert found.sentences == (
        "1 image of heldout_data is among the 64 of 248 images of training_data that were compared, so about 4 in all: "
        f"index 540 (there {int(batch.index[0])})",
    )
    assert hash_part(batch, "").hashes[0] == hash_part(leaky, "").hashes[-1]


def test_images_of_redrawn_hessian_batches_are_not_read(trained, digits_parts):
    training = replace(digits_parts.training, in_memory=False)
    config = replace(ONE_STEP, search=replace(ONE_STEP.search, redraw_hessian=True))
    problem, _ = prepare(trained, training, digits_parts.calibration, config)
    found = check_leaks(problem, training, digits_parts.heldout)
    assert (found.compared, found.leaks) == (0, ())


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_comparison_checks_its_images_too(trained, digits_parts, in_memory):
    training = replace(digits_parts.training, in_memory=in_memory)
    protocol = hs.Protocol(methods=("class-bias",), splits=1)
    images = join_sets(digits_parts.calibration, digits_parts.heldout)
    assert hs.compare(trained, data=images, training_data=training, protocol=protocol).warnings == ()
    few = with_images_of(with_images_of(images, training, 2), images, 1)
    fronts = hs.compare(trained, data=few, training_data=training, protocol=protocol)
    assert fronts.warnings[0].startswith("2 images of data are in training_data as well: index 1078 (there")
    assert fronts.warnings[1].startswith("1 image of data is a copy of another there: index 1080 (there 0); such ")
    assert fronts.as_dict()["warnings"] == list(fronts.warnings)
    with pytest.raises(hs.InputError, match=r"^data: 11 images are in training_data as well"):
        hs.compare(trained, data=with_images_of(images, training, 11), training_data=training, protocol=protocol)
