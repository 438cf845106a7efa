from dataclasses import replace

import pytest

import hessian_surgery as hs
from hessian_surgery.operation.config import SurgeryConfig


def test_the_papers_settings():
    """FINDINGS' table, row by row."""
    ten = SurgeryConfig.paper("cifar10")
    assert (ten.spikes, ten.lanczos_steps, ten.hessian_samples, ten.iterations) == (9, 10, 128, 15)
    assert (ten.amplitude, ten.exponent, ten.bound, ten.strong_above) == (0.02, 2, "ball", 0.85)
    assert (ten.reference, ten.returned, ten.control) == ("previous", "last", "adam")
    assert (ten.sensitivity, SurgeryConfig().sensitivity) == ("differences", "gradients")
    assert SurgeryConfig.paper("cifar10", control="gamma").iterations == 10
    hundred = SurgeryConfig.paper("cifar100")
    assert (hundred.spikes, hundred.lanczos_steps, hundred.iterations, hundred.amplitude) == (15, 20, 3, 0.029)
    assert (hundred.exponent, hundred.strong_above) == (1, None)
    isic = SurgeryConfig.paper("isic")
    assert (isic.spikes, isic.lanczos_steps, isic.hessian_samples, isic.iterations) == (None, 10, 256, 10)
    assert (isic.exponent, isic.bound, isic.calibration_cap, isic.hessian_sampling) == (0.5, "box", 250, "natural")
    focal = SurgeryConfig.paper("isic", start="focal")
    assert (focal.iterations, focal.hessian_samples, focal.loss) == (20, 64, "focal")
    balanced = SurgeryConfig.paper("isic", start="class-balanced")
    assert (balanced.iterations, balanced.hessian_sampling, balanced.patience) == (5, "stratified", 3)


def test_the_default_is_planned_and_the_loop_is_asked_for():
    default = SurgeryConfig()
    assert (default.algorithm, default.directions, default.uses_spikes) == ("planned", "class-gradients", False)
    assert (default.iterations, default.budget, default.max_drop) == (3, 0.002, None)
    assert SurgeryConfig(directions="both").uses_spikes
    loop = SurgeryConfig.loop()
    assert (loop.algorithm, loop.iterations, loop.uses_spikes, loop.returned) == ("loop", 15, True, "best")
    assert SurgeryConfig.loop(iterations=4, seed=2) == replace(loop, iterations=4, seed=2)
    assert all(SurgeryConfig.paper(name).algorithm == "loop" for name in ("cifar10", "cifar100", "isic"))


def test_the_same_choices_as_a_loop():
    assert SurgeryConfig(seed=3, spikes=4).as_loop() == SurgeryConfig.loop(seed=3, spikes=4)
    short = SurgeryConfig.loop(iterations=2)
    assert short.as_loop() is short


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "magic"}, "algorithm: got 'magic'; it must be one of planned, loop"),
        ({"directions": "up"}, "directions: got 'up'; it must be one of class-gradients, spikes, both"),
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
    with pytest.raises(hs.InputError, match=message):
        SurgeryConfig(**options)


def test_bad_presets_are_named():
    with pytest.raises(hs.InputError, match="dataset: got 'mnist'"):
        SurgeryConfig.paper("mnist")
    with pytest.raises(hs.InputError, match="only isic has others"):
        SurgeryConfig.paper("cifar10", start="focal")
    with pytest.raises(hs.InputError, match="start: got 'ldam'"):
        SurgeryConfig.paper("isic", start="ldam")
