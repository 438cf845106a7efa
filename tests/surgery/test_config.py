import pytest

import hessian_surgery as hs
from hessian_surgery.surgery.config import SurgeryConfig


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
    assert (isic.exponent, isic.bound, isic.sensitivity_cap, isic.hessian_sampling) == (0.5, "box", 250, "natural")
    focal = SurgeryConfig.paper("isic", start="focal")
    assert (focal.iterations, focal.hessian_samples, focal.loss) == (20, 64, "focal")
    balanced = SurgeryConfig.paper("isic", start="class-balanced")
    assert (balanced.iterations, balanced.hessian_sampling, balanced.patience) == (5, "stratified", 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
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
