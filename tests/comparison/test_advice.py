from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from hessian_surgery.baselines.outputs import ModelOutputs
from hessian_surgery.comparison.advice import advise
from hessian_surgery.comparison.against_bias import AgainstBias
from hessian_surgery.comparison.fronts import Fronts
from hessian_surgery.comparison.protocol import Protocol
from hessian_surgery.comparison.row import Row
from hessian_surgery.comparison.tables import against_bias, to_markdown
from hessian_surgery.evidence.difference import Difference
from hessian_surgery.operation.config import SurgeryConfig


def around(value, error=0.005):
    """A figure and a thousand resamples of it, which spread like a normal distribution."""
    normal = stats.norm.ppf((np.arange(1000) + 0.5) / 1000)
    return np.concatenate([[value], value + error * normal / normal.std(ddof=1)])


def row(name, splits=5, reasons=None):
    return Row(name, 0.002, splits, -0.001, 0.08, 0.01, 0.01, 0.6, 0.8, 1.5, {}, reasons or {}, loss=(0.042, "bee"))


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
        against_bias={
            name: AgainstBias(
                around(sigma), around(sigma), around(accuracy), around(bias_effect + sigma), around(accuracy)
            )
            for name, (sigma, accuracy) in gains.items()
        },
        bias_shares={"spikes": [0.9, 0.5]},
        predicted={},
        edits={},
        outputs=ModelOutputs(("ant", "bee"), torch.tensor([0, 1]), torch.eye(2)),
        protocol=Protocol(),
    )


def test_a_clear_leader():
    found = advise(fronts({"spikes": (-0.03, 0.0), "class-gradients": (-0.042, 0.0), "last-layer": (0.02, 0.0)}))
    assert found.method == "class-gradients"
    assert found.sentence == (
        "class-gradients is ahead of class bias by 4.20 [3.22, 5.18] pp of σ at the same accuracy, and of the next "
        "best, spikes, by 1.20 [1.20, 1.20] pp."
    )
    level = advise(fronts({"spikes": (-0.03, 0.0), "one-step": (-0.03, 0.0)})).sentence
    assert "it differs from the next best, one-step, within noise (+0.00" in level


def test_class_bias_is_enough():
    found = advise(fronts({"spikes": (-0.002, 0.001), "last-layer": (0.02, 0.0)}))
    assert found.method == "class-bias"
    assert "Class bias is enough here" in found.sentence
    assert "the closest, spikes, differs within noise (-0.20 [-1.18, +0.78] pp at the same accuracy)" in found.sentence
    assert advise(fronts({})).sentence == "Class bias changes σ by -5.00 [-6.00, -4.00] pp."


def test_nothing_helps():
    found = advise(fronts({"spikes": (0.0, 0.0)}, bias_effect=-0.004))
    assert found.method == "nothing"
    assert "Nothing lowers σ beyond noise (class bias: -0.40 [-1.40, +0.60] pp)" in found.sentence


def test_more_accuracy_at_the_same_spread():
    found = advise(fronts({"spikes": (-0.001, 0.02), "last-layer": (0.004, 0.089), "tau-norm": (0.05, 0.1)}))
    assert found.method == "last-layer"  # tau-norm is even more accurate, but its σ is higher
    assert "accuracy +8.90 [+7.92, +9.88] pp against class bias at the same budget; σ differs within" in found.sentence
    assert "Trade-off: against class bias at the same budget, tau-norm changes accuracy by +10.00" in found.sentence


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
    sentence = advise(fronts({"spikes": (0.065, 0.0)})).sentence
    assert "within noise" not in sentence
    assert "is ahead of the next best, spikes, by 6.50 [5.52, 7.48] pp at the same accuracy." in sentence


def test_a_difference_whose_interval_is_off_zero_is_not_called_noise():
    """The lead is beyond noise by itself, but not as the best of five."""
    found = advise(fronts({"one-step": (-0.0108, 0.0)} | {f"spikes:{k}": (0.0, 0.0) for k in range(1, 5)}))
    assert found.method == "class-bias"
    assert "one-step is ahead of class bias by 1.08 [0.10, 2.06] pp of σ" in found.sentence
    assert "may be so by luck" in found.sentence
    assert "within noise" not in found.sentence


def test_a_trade_is_named_as_one_and_never_as_behind():
    """The method has 3.8 pp more accuracy, and lowers σ by less than class bias does."""
    found = advise(fronts({"last-layer": (0.03, 0.038)}))
    assert found.method == "class-bias"
    assert found.sentence == (
        "Class bias changes σ by -5.00 [-6.00, -4.00] pp. Trade-off: against class bias at the same budget, "
        "last-layer changes accuracy by +3.80 [+2.82, +4.78] pp and σ by +3.00 [+2.02, +3.98] pp."
    )


@pytest.mark.parametrize(
    ("terms", "figure"),
    [({"target": "worst"}, "the worst class's error"), ({"targets": {"ant": 0.9}}, "the targets' shortfall")],
)
def test_the_advice_is_about_what_was_aimed_at(terms, figure):
    given = replace(fronts({"spikes": (-0.03, 0.0)}), terms=SurgeryConfig(**terms))
    assert f"is ahead of class bias by 3.00 [2.02, 3.98] pp of {figure} at the same budget" in advise(given).sentence


def test_the_markdown_has_a_line_for_each_row_and_the_advice():
    text = to_markdown(fronts({"spikes": (-0.03, 0.0), "focal|x": (0.0, 0.0)}))
    assert "| spikes | 0.2 | -0.10 | 8.00 ± 1.00 | 60.0 | 80.0 | 4.2 bee |  | 1.5 |" in text
    assert "focal\\|x" in text
    assert "**spikes is ahead of class bias by 3.00 \\[2.02, 3.98\\] pp of σ at the same accuracy" in text
    assert "(spikes): 0.90, 0.50." in text


def test_accuracy_bought_with_spread_is_no_gain():
    """It is ahead at its own accuracy only because class bias has no point there."""
    given = fronts({"tau-norm": (-0.001, 0.02)})
    worse = replace(given.against_bias["tau-norm"], figure_at_budget=around(0.03))
    assert advise(replace(given, against_bias={"tau-norm": worse})).method == "class-bias"


def test_a_method_that_leaves_the_model_alone_is_no_gain():
    """Class bias overfits, so even a method that does nothing is more accurate."""
    given = fronts({"logit-adjustment": (0.0, 0.02)}, bias_effect=-0.004)
    idle = replace(given.against_bias["logit-adjustment"], figure_change=around(0.0), accuracy_change=around(0.0))
    assert advise(replace(given, against_bias={"logit-adjustment": idle})).method == "nothing"


def test_another_method_may_lower_sigma_where_class_bias_does_not():
    given = fronts({"spikes": (0.0, 0.0)}, bias_effect=-0.004)
    lowering = replace(given.against_bias["spikes"], figure_change=around(-0.02))
    found = advise(replace(given, against_bias={"spikes": lowering}))
    assert found.method == "spikes"
    assert (
        "spikes changes σ by -2.00 [-2.98, -1.02] pp against the model as it is; "
        "class bias by -0.40 [-1.40, +0.60] pp, within noise." in found.sentence
    )


def test_what_is_worse_beyond_noise_is_said_to_be_worse():
    """Class bias raises σ by 1.5 [+0.5, +2.5] pp, and spikes lower it."""
    given = fronts({"spikes": (0.0, 0.0)}, bias_effect=0.015)
    lowering = replace(given.against_bias["spikes"], figure_change=around(-0.02))
    sentence = advise(replace(given, against_bias={"spikes": lowering})).sentence
    assert sentence.endswith("class bias by +1.50 [+0.50, +2.50] pp, which is worse.")


def test_more_accuracy_and_a_lower_figure_is_not_called_noise():
    """At the same budget σ is lower beyond noise, but not at the same accuracy."""
    given = fronts({"last-layer": (0.0, 0.03)})
    lower = replace(given.against_bias["last-layer"], figure_at_budget=around(-0.02))
    found = advise(replace(given, against_bias={"last-layer": lower}))
    assert found.method == "last-layer"
    assert found.sentence.endswith("at the same budget; σ is lower too (-2.00 [-2.98, -1.02] pp).")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        # The resamples of both move together, so their difference is known better than either.
        (0.018, "the lowest, spikes, is below it by 1.00 [0.06, 1.94] pp, but is not surely better than class bias"),
        (0.03, "it differs from the lowest, spikes, within noise (+1.00 ["),
    ],
)
def test_a_leader_may_be_above_one_that_is_not_sure(error, said):
    given = fronts({"one-step": (-0.03, 0.0), "spikes": (-0.04, 0.0)})
    sure = replace(given.against_bias["one-step"], figure=around(-0.03, 0.0132))
    unsure = replace(given.against_bias["spikes"], figure=around(-0.04, error))
    found = advise(replace(given, against_bias={"one-step": sure, "spikes": unsure}))
    assert found.method == "one-step"
    assert said in found.sentence


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("loop", "the loop has limits of its own"),
        ("focal", "a training knows no limits"),
        ("spikes+bulk", "a training knows no limits"),
        ("focal+class-bias", "limits count from the trained model"),
    ],
)
def test_what_does_not_obey_the_limits_is_told_with_the_reason_and_not_advised(name, why):
    found = advise(fronts({name: (-0.1, 0.02), "spikes": (-0.002, 0.0)}))
    assert found.method == "class-bias"
    assert "the closest, spikes, differs within noise" in found.sentence
    assert found.sentence.endswith(
        f"Against class bias at a budget of 0.2 pp, {name} changes accuracy by +2.00 [+1.02, +2.98] pp and σ by "
        f"-10.00 [-10.98, -9.02] pp, but {why}."
    )
    assert name not in advise(fronts({name: (0.0, 0.0), "spikes": (-0.002, 0.0)})).sentence


def test_other_aims_are_noted_above_the_table():
    given = fronts({"spikes": (-0.03, 0.0)})
    assert "are about σ alone" not in to_markdown(given)
    worst = replace(given, terms=SurgeryConfig(target="worst"))
    said = "are about σ alone; the advice is about the worst class's error."
    assert said in to_markdown(worst).partition("| method")[0]


def test_the_same_step_is_called_so():
    """Not a difference of +0.00 [+0.00, +0.00] pp."""
    nothing = np.zeros(1001)
    made = fronts({"operate": (0.0, 0.0)})
    same = AgainstBias(nothing, nothing, nothing, around(-0.05), nothing)
    found = advise(replace(made, against_bias={"operate": same}))
    assert found.sentence.startswith("Class bias is enough here: operate makes the same step. ")
    assert against_bias(0.0, (0.0, 0.0)) == "the same step"
    assert against_bias(0.0, (0.0, 0.001)) == "+0.00 [+0.00, +0.10]"
