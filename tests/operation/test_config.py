from dataclasses import fields

import pytest
import torch

import hessian_surgery as hs
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.paper.config import as_loop


def searched(config):
    return config.search.spikes, config.search.lanczos_steps, config.search.hessian_samples


def test_the_papers_settings():
    """FINDINGS' table, row by row."""
    ten = hs.paper_config("cifar10")
    assert (searched(ten), ten.iterations) == ((9, 10, 128), 15)
    assert (ten.amplitude, ten.exponent, ten.bound, ten.strong_above) == (0.02, 2, "ball", 0.85)
    assert (ten.reference, ten.returned, ten.control) == ("previous", "last", "adam")
    assert (ten.sensitivity, hs.LoopConfig().sensitivity) == ("differences", "gradients")
    assert hs.paper_config("cifar10", control="gamma").iterations == 10
    hundred = hs.paper_config("cifar100")
    assert (searched(hundred), hundred.iterations, hundred.amplitude) == ((15, 20, 128), 3, 0.029)
    assert (hundred.exponent, hundred.strong_above) == (1, None)
    isic = hs.paper_config("isic")
    assert (searched(isic), isic.iterations) == ((None, 10, 256), 10)
    assert (isic.exponent, isic.bound, isic.calibration_cap, isic.search.hessian_sampling) == (
        0.5,
        "box",
        250,
        "natural",
    )
    focal = hs.paper_config("isic", start="focal")
    assert (focal.iterations, focal.search.hessian_samples, focal.search.loss) == (20, 64, "focal")
    balanced = hs.paper_config("isic", start="class-balanced")
    assert (balanced.iterations, balanced.search.hessian_sampling, balanced.patience) == (5, "stratified", 3)


@pytest.mark.parametrize(
    ("start", "samples", "sampling", "loss", "iterations"),
    [
        ("ce", 256, "natural", "cross-entropy", 10),
        ("focal", 64, "natural", "focal", 20),
        ("class-balanced", 256, "stratified", "cross-entropy", 5),
    ],
)
def test_the_papers_settings_on_skin(start, samples, sampling, loss, iterations):
    """Section 9.2, with T from tables 8 and 13, and m from section 10.3."""
    config = hs.paper_config("isic", start=start)
    search = config.search
    assert (search.hessian_samples, search.hessian_sampling, search.loss) == (samples, sampling, loss)
    assert (config.iterations, config.control, config.amplitude) == (iterations, "adam", 0.02)
    assert (config.bound, config.exponent, config.calibration_cap) == ("box", 0.5, 250)
    assert (search.lanczos_steps, search.count(8), search.signs) == (10, 7, "positive")
    assert (config.reference, config.returned, config.sensitivity) == ("previous", "last", "differences")


def test_a_stratified_batch_has_32_of_each_of_eight_classes():
    """Section 9.2's batch for the class-balanced checkpoint, from skewed training images."""
    labels = torch.arange(8).repeat_interleave(torch.tensor([2000, 900, 300, 100, 60, 50, 40, 33]))
    data = hs.as_labelled((torch.zeros(len(labels), 1), labels))
    search = hs.paper_config("isic", start="class-balanced").search
    assert hs.hessian_batch(data, search.hessian_samples, search.hessian_sampling).counts.tolist() == [32] * 8


def test_the_default_operation_and_the_loop():
    default = SurgeryConfig()
    assert (default.algorithm, default.directions, default.uses_spikes) == ("default", "refit", False)
    assert (default.iterations, default.budget, default.max_drop) == (1, 0.002, None)
    assert SurgeryConfig(directions="both").uses_spikes
    loop = hs.LoopConfig()
    assert (loop.algorithm, loop.iterations, loop.uses_spikes, loop.returned) == ("loop", 15, True, "best")
    assert all(hs.paper_config(name).algorithm == "loop" for name in ("cifar10", "cifar100", "isic"))


def test_the_same_choices_as_a_loop():
    search = hs.SpikeSearch(spikes=4)
    assert as_loop(SurgeryConfig(seed=3, search=search)) == hs.LoopConfig(seed=3, search=search)
    short = hs.LoopConfig(iterations=2)
    assert as_loop(short) is short


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"directions": "up"}, "directions: got 'up'; it must be one of refit, class-gradients, spikes"),
        ({"budget": -0.1}, "budget: got -0.1; it must be a fraction"),
        ({"max_drop": 2}, "max_drop: got 2; it must be a fraction"),
        ({"iterations": 0}, "iterations: got 0; it must be at least 1"),
        ({"spikes": 0}, "spikes: got 0"),
        ({"spikes": 9, "lanczos_steps": 5}, r"lanczos_steps: got 5; it must be at least as many as spikes \(9\)"),
        ({"exponent": -1}, "exponent: got -1"),
        ({"amplitude": 0.0}, "amplitude: got 0.0"),
        ({"tolerance": 1.0}, "tolerance: got 1.0"),
        ({"rollback_drop": 7}, "rollback_drop: got 7; it must be a fraction"),
        ({"control": "sgd"}, "control: got 'sgd'; it must be one of adam, gamma"),
        ({"loss": "hinge"}, "loss: got 'hinge'"),
        ({"sensitivity": "guess"}, "sensitivity: got 'guess'; it must be one of gradients, differences"),
    ],
)
def test_bad_choices_are_named(options, message):
    kinds = (hs.SpikeSearch, SurgeryConfig, hs.LoopConfig)
    takes = next(kind for kind in kinds if options.keys() <= {own.name for own in fields(kind)})
    with pytest.raises(hs.InputError, match=message):
        takes(**options)


def test_bad_presets_are_named():
    with pytest.raises(hs.InputError, match="dataset: got 'mnist'"):
        hs.paper_config("mnist")
    with pytest.raises(hs.InputError, match="only isic has others"):
        hs.paper_config("cifar10", start="focal")
    with pytest.raises(hs.InputError, match="start: got 'ldam'"):
        hs.paper_config("isic", start="ldam")
