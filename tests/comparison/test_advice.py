from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from hessian_surgery.baselines.outputs import ModelOutputs
from hessian_surgery.comparison.advice import advise
from hessian_surgery.comparison.fronts import Fronts, Gain, Row
from hessian_surgery.comparison.tables import to_markdown
from hessian_surgery.evidence.difference import Difference


def around(value, error=0.005):
    """A figure and a thousand resamples of it, which spread like a normal distribution."""
    normal = stats.norm.ppf((np.arange(1000) + 0.5) / 1000)
    return np.concatenate([[value], value + error * normal / normal.std(ddof=1)])


def row(name, splits=5, reasons=None):
    return Row(name, 0.002, splits, -0.001, 0.08, 0.01, 0.01, 0.6, 0.8, 1.5, {}, reasons or {})


def fronts(gains, bias_effect=-0.05, bias=None):
    """Fronts from each entry's (σ, accuracy) against class bias, which adds `bias_effect`."""
    effect = Difference(bias_effect, (bias_effect - 0.01, bias_effect + 0.01))
    return Fronts(
        classes=("ant", "bee"),
        images=400,
        splits=5,
        headline=0.002,
        base={"accuracy": 0.9, "sigma": 0.13, "worst": 0.5, "balanced_accuracy": 0.8},
        rows=(bias or row("class-bias"), *(row(name) for name in gains)),
        at_headline={},
        bias_effect=effect,
        gains={
            name: Gain(around(sigma), around(sigma), around(accuracy), around(bias_effect + sigma), around(accuracy))
            for name, (sigma, accuracy) in gains.items()
        },
        bias_shares={"spikes": [0.9, 0.5]},
        predicted={},
        edits={},
        outputs=ModelOutputs(("ant", "bee"), torch.tensor([0, 1]), torch.eye(2)),
    )


def test_a_clear_leader():
    found = advise(fronts({"spikes": (-0.03, 0.0), "class-gradients": (-0.042, 0.0), "last-layer": (0.02, 0.0)}))
    assert found.method == "class-gradients"
    assert found.sentence == "class-gradients: σ 4.2 [3.0, 5.4] pp below class bias at the same accuracy."


def test_class_bias_is_enough():
    found = advise(fronts({"spikes": (-0.002, 0.001), "last-layer": (0.02, 0.0)}))
    assert found.method == "class-bias"
    assert "Class bias is enough here" in found.sentence
    assert "the closest, spikes: σ -0.2 pp [-1.3, +0.9]" in found.sentence
    assert advise(fronts({})).sentence == "Class bias lowers σ: -5.0 pp [-6.0, -4.0]."


def test_nothing_helps():
    found = advise(fronts({"spikes": (0.0, 0.0)}, bias_effect=-0.004))
    assert found.method == "nothing"
    assert "Nothing lowers σ beyond noise (class bias: -0.4 pp [-1.4, +0.6])" in found.sentence


def test_more_accuracy_at_the_same_spread():
    found = advise(fronts({"spikes": (-0.001, 0.02), "last-layer": (0.004, 0.089), "tau-norm": (0.05, 0.1)}))
    assert found.method == "last-layer"  # tau-norm is even more accurate, but its σ is higher
    assert "accuracy +8.9 pp [+7.7, +10.1] against class bias, and σ is not clearly higher (+0.4 pp" in found.sentence


def test_no_advice_where_class_bias_failed():
    failed = row("class-bias", 0, {0: "class 'bee' has no calibration image"})
    found = advise(fronts({}, bias=failed))
    assert found.method == "nothing"
    assert found.sentence.startswith("No advice: ")
    assert "class 'bee' has no calibration image" in found.sentence


@pytest.mark.parametrize("name", ["random", "random:20", "temperature", "nothing"])
def test_controls_are_not_recommended(name):
    assert advise(fronts({name: (-0.1, 0.1)})).method == "class-bias"


def test_the_more_methods_the_wider_the_intervals():
    """A lead in 98.5 % of cases is enough for one method, not for the best of many."""
    lead = {"spikes": (-0.0108, 0.0)}
    assert advise(fronts(lead)).method == "spikes"
    assert advise(fronts(lead | {f"spikes:{k}": (0.0, 0.0) for k in range(1, 9)})).method == "class-bias"


def test_a_method_that_is_clearly_worse_is_not_called_noise():
    assert "within noise" not in advise(fronts({"spikes": (0.065, 0.0)})).sentence


def test_the_markdown_has_a_line_for_each_row_and_the_advice():
    text = to_markdown(fronts({"spikes": (-0.03, 0.0), "focal|x": (0.0, 0.0)}))
    assert "| spikes | 0.2 | -0.10 | 8.00 ± 1.00 | 60.0 | 80.0 |  | 1.5 |" in text
    assert "focal\\|x" in text
    assert "**spikes: σ 3.0 \\[1.9, 4.1\\] pp below class bias at the same accuracy.**" in text
    assert "(spikes): 0.90, 0.50." in text


def test_accuracy_bought_with_spread_is_no_gain():
    """It is ahead at its own accuracy only because class bias has no point there."""
    given = fronts({"tau-norm": (-0.001, 0.02)})
    worse = replace(given.gains["tau-norm"], sigma_at_budget=around(0.03))
    assert advise(replace(given, gains={"tau-norm": worse})).method == "class-bias"


def test_a_method_that_leaves_the_model_alone_is_no_gain():
    """Class bias overfits, so even a method that does nothing is more accurate."""
    given = fronts({"logit-adjustment": (0.0, 0.02)}, bias_effect=-0.004)
    idle = replace(given.gains["logit-adjustment"], sigma_change=around(0.0), accuracy_change=around(0.0))
    assert advise(replace(given, gains={"logit-adjustment": idle})).method == "nothing"


def test_another_method_may_lower_sigma_where_class_bias_does_not():
    given = fronts({"spikes": (0.0, 0.0)}, bias_effect=-0.004)
    lowering = replace(given.gains["spikes"], sigma_change=around(-0.02))
    found = advise(replace(given, gains={"spikes": lowering}))
    assert found.method == "spikes"
    assert (
        "σ -2.0 pp [-3.0, -1.0] against the model as it is; class bias: -0.4 pp [-1.4, +0.6], within noise."
        in found.sentence
    )
