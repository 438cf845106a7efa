"""The forecast against what operations then measure on other images."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import hessian_surgery as hs
from conftest import operate
from hessian_surgery.data.sources import Parts
from hessian_surgery.operation.forecast import Forecast, make_forecast
from hessian_surgery.operation.problem import prepare

CLASSES = 5


def forecast(model: nn.Module, parts: Parts, **options) -> Forecast:
    config = hs.SurgeryConfig(**options)
    problem, _ = prepare(model, parts.training, parts.calibration, config)
    return make_forecast(problem)


def simulated(seed: int, spread: float, count: int = 150) -> Parts:
    """Images that are logits themselves; some classes have a bias against them, up to `spread`."""
    draw = torch.Generator().manual_seed(seed)
    against = spread * torch.linspace(0, 1, CLASSES)

    def part(images: int) -> hs.LabelledSet:
        labels = torch.arange(CLASSES).repeat(images)
        logits = 2.0 * nn.functional.one_hot(labels, CLASSES) + torch.randn(len(labels), CLASSES, generator=draw)
        return hs.as_labelled((logits - against, labels))

    return Parts(part(20), part(count), part(4 * count))


class Shift(nn.Module):
    """The logits themselves, through a head that may be shifted."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.fc = nn.Linear(CLASSES, CLASSES, bias=bias)
        nn.init.eye_(self.fc.weight)
        if bias:
            nn.init.zeros_(self.fc.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


def test_other_images_show_what_was_forecast_or_better(trained, digits_parts):
    seen = forecast(trained, digits_parts)
    outcome = operate(trained, digits_parts, hs.SurgeryConfig())
    before, after = outcome.findings.tests.sigma_corrected
    assert seen.gains
    assert seen.reachable
    assert after - before <= seen.sigma.after - seen.sigma.before + seen.sigma.within
    before, after = (found.worst for found in outcome.findings.heldout.metrics())
    assert after - before >= seen.worst.after - seen.worst.before - seen.worst.within


@pytest.mark.full
@pytest.mark.parametrize("aim", ["sigma", "worst"])
def test_over_many_draws_few_operations_fall_short(aim):
    short = 0
    for seed in range(12):
        parts = simulated(seed, 1.5)
        seen = forecast(Shift(), parts, target=aim, seed=seed)
        tests = operate(Shift(), parts, hs.SurgeryConfig(target=aim, seed=seed)).findings.tests
        reached = tests.sigma.difference if aim == "sigma" else -tests.worst.difference
        figure = getattr(seen, aim)
        promised = figure.after - figure.before if aim == "sigma" else figure.before - figure.after
        short += reached > promised + figure.within
        assert seen.accuracy.after >= seen.accuracy.before - 0.002
    assert short <= 2


def test_equal_classes_are_forecast_to_stay_as_they_are():
    quiet = [forecast(Shift(), simulated(seed, 0.0), seed=seed) for seed in range(5)]
    still = [seen for seen in quiet if not seen.gains]
    assert len(still) >= 3
    assert all(seen.sigma.before == seen.sigma.after for seen in still)
    assert "gain no more than noise at a budget of 0.2 pp" in still[0].sentence


def test_targets_and_heads_without_biases_are_told():
    parts = simulated(0, 1.5)
    seen = forecast(Shift(), parts, targets={"4": 0.6})
    assert list(seen.targets) == ["4"]
    assert seen.targets["4"].after > seen.targets["4"].before
    assert seen.sentence.startswith("Forecast: at least about 4 ")
    assert "(wanted 60)" in seen.sentence
    stiff = forecast(Shift(bias=False), parts)
    assert not stiff.reachable
    assert "this head has none that operate may move" in stiff.sentence


def test_a_class_with_one_image_is_refused_as_operate_does():
    parts = simulated(0, 1.0)
    few = parts.calibration.subset(torch.from_numpy(np.r_[0, 1:5, 6:10]))
    with pytest.raises(hs.InputError, match="class '0' has 1 sample; give at least 2"):
        forecast(Shift(), replace(parts, calibration=few))
