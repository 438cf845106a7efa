import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hessian_surgery.baselines.choice import unbeaten
from hessian_surgery.baselines.outputs import ModelOutputs
from hessian_surgery.comparison.advice import advise
from hessian_surgery.comparison.bootstrap import at_accuracy, difference, draw_weights, gap_to_front, mean_gap, tally
from hessian_surgery.comparison.fronts import make_fronts
from hessian_surgery.comparison.protocol import Protocol
from hessian_surgery.comparison.run_context import EntryResult
from hessian_surgery.comparison.tables import table_rows
from hessian_surgery.data.labelled import as_labelled
from hessian_surgery.evidence.before_after import BeforeAfter
from hessian_surgery.evidence.metrics import compute_metrics
from hessian_surgery.evidence.paired_tests import paired_tests
from hessian_surgery.model.evaluation import Answers
from hessian_surgery.operation.config import SurgeryConfig

TERMS = SurgeryConfig()


def predictions(labels, rates, seed):
    """Predictions that are right with each class's probability, else the next class."""
    right = np.random.default_rng(seed).random(len(labels)) < np.asarray(rates)[labels]
    return np.where(right, labels, (labels + 1) % len(rates))


def compared(labels, entries, seed=0, count=2, terms=TERMS):
    """Fronts from predictions (N,) or (S, N) by entry, and the splits."""
    outputs = ModelOutputs(("a", "b", "c"), torch.from_numpy(labels), torch.zeros(len(labels), 3))
    protocol = Protocol(methods=("class-bias",), splits=count, budgets=(0.002,), seed=seed)
    splits = protocol.make_splits(as_labelled((outputs.logits, outputs.labels), outputs.classes))
    results = []
    for name, predicted in entries.items():
        predicted = torch.from_numpy(np.broadcast_to(predicted, (count, len(labels))).copy())
        reasons = {i: "why" for i in range(count) if (predicted[i] < 0).all()}
        results.append(EntryResult(name, None if name == "nothing" else 0.002, predicted, reasons, 1.0))
    return make_fronts(outputs, results, splits, protocol, terms), splits


def front_at(accuracy, sigma, wanted):
    kept = unbeaten(accuracy, sigma)
    return at_accuracy(accuracy[kept], sigma[kept], wanted)


def test_a_front_by_hand():
    accuracy = np.array([0.90, 0.88, 0.86, 0.87, 0.84])
    sigma = np.array([0.10, 0.06, 0.02, 0.07, 0.03])  # other points beat the last two in both
    assert front_at(accuracy, sigma, 0.90) == pytest.approx(0.10)
    assert front_at(accuracy, sigma, 0.89) == pytest.approx(0.08)
    assert front_at(accuracy, sigma, 0.87) == pytest.approx(0.04)
    assert front_at(accuracy, sigma, 0.95) == pytest.approx(0.10)
    assert front_at(accuracy, sigma, 0.50) == pytest.approx(0.02)
    assert front_at(np.array([0.9, 0.9]), np.array([0.2, 0.1]), 0.9) == 0.1


@pytest.mark.full
def test_a_front_where_the_headline_budget_is_lost():
    """Two methods at one budget each: their fronts are chords from the original model."""
    labels = np.repeat(np.arange(3), 4000)
    found, _ = compared(
        labels,
        {
            "nothing": predictions(labels, [0.70, 0.85, 0.97], 0),
            "class-bias": predictions(labels, [0.77, 0.83, 0.90], 1),
            "operate": predictions(labels, [0.80, 0.83, 0.87], 2),
        },
    )
    ours = found.at_headline["operate"]
    bias = found.at_headline["class-bias"]
    assert set(found.at_headline) == {"class-bias", "operate"}
    assert bias["against_class_bias"].difference == 0
    assert ours["sigma_change"].difference < bias["sigma_change"].difference < 0
    gap = ours["sigma_change"].difference - bias["sigma_change"].difference
    assert ours["against_class_bias"].difference == pytest.approx(gap)
    rows = {row.name: row for row in found.rows}
    lost = -rows["operate"].delta_accuracy
    chord = rows["operate"].sigma_change.difference * min(1.0, 0.002 / lost) if lost > 0 else None
    assert chord is None or ours["sigma_change"].difference == pytest.approx(chord, abs=0.003)


points = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 0.5)), min_size=1, max_size=8)


@given(points=points, wanted=st.lists(st.floats(0, 1), min_size=2, max_size=2))
def test_more_accuracy_never_costs_less(points, wanted):
    accuracy, sigma = np.array(points).T
    low, high = (front_at(accuracy, sigma, at) for at in sorted(wanted))
    assert low <= high + 1e-12
    assert sigma.min() - 1e-12 <= low
    assert high <= sigma.max() + 1e-12


@given(points=points)
def test_no_point_is_below_its_own_front(points):
    accuracy, sigma = np.array(points).T
    assert all(front_at(accuracy, sigma, a) <= s + 1e-12 for a, s in points)


def test_a_tally_holds_the_measured_figures():
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat([0, 1, 2], (60, 30, 15)))
    predicted = np.stack([predictions(labels, (0.9, 0.6, 0.4), seed) for seed in range(2)])
    heldout = rng.random((2, 105)) < 0.5
    found = tally(predicted, labels, heldout, draw_weights(labels, 0, 4), 3)
    assert found.sigma.shape == (5, 2)
    for split in range(2):
        own = [torch.from_numpy(values[heldout[split]]) for values in (predicted[split], labels)]
        expected = compute_metrics(*own, 3)
        assert found.accuracy[0, split] == pytest.approx(expected.accuracy)
        assert found.sigma[0, split] == pytest.approx(expected.sigma)
        assert found.worst[0, split] == pytest.approx(expected.worst)
        assert found.balanced[0, split] == pytest.approx(expected.balanced_accuracy)


def test_a_resample_repeats_images():
    labels = np.repeat([0, 1, 2], 20)
    predicted = predictions(labels, (0.9, 0.6, 0.4), 0)[None]
    heldout = np.ones((1, 60), dtype=bool)
    weights = draw_weights(labels, 0, 3)
    found = tally(predicted, labels, heldout, weights, 3)
    for i in range(1, 4):
        assert [weights[i, labels == c].sum() for c in range(3)] == [20, 20, 20]
        again = np.repeat(np.arange(60), weights[i].astype(int))
        expected = compute_metrics(torch.from_numpy(predicted[0, again]), torch.from_numpy(labels[again]), 3)
        assert found.sigma[i, 0] == pytest.approx(expected.sigma)
        assert found.accuracy[i, 0] == pytest.approx(expected.accuracy)
    assert not np.array_equal(weights[1], weights[2])


def test_differences_of_sigma_are_those_without_sampling_noise():
    """As `paired_tests` finds them, on the same images; its resamples are other ones."""
    labels = np.repeat([0, 1, 2], 60)
    old, new = (predictions(labels, rates, 1) for rates in ((1, 0.9, 0.5), (0.85, 0.8, 0.75)))
    whole_set, weights = np.ones((1, 180), dtype=bool), draw_weights(labels, 0)
    before, after = (tally(p[None], labels, whole_set, weights, 3) for p in (old, new))
    change = difference(mean_gap(after.clean, before.clean))
    whole = torch.from_numpy(labels)
    answers = [Answers(torch.from_numpy(p), torch.ones(180), torch.zeros(180)) for p in (old, new)]
    tests = paired_tests(BeforeAfter(("a", "b", "c"), torch.arange(180), whole, *answers))
    assert change.difference == pytest.approx(tests.sigma.difference)
    assert change.interval == pytest.approx(tests.sigma.interval, abs=0.006)


def test_the_standard_error_of_sigma_is_scipys():
    labels = np.repeat([0, 1, 2], 40)
    predicted = predictions(labels, (0.9, 0.7, 0.5), 1)
    found = tally(predicted[None], labels, np.ones((1, 120), dtype=bool), draw_weights(labels, 0), 3)
    right = [(predicted == labels)[labels == c].astype(float) for c in range(3)]

    def sigma(*classes, axis=-1):
        return np.std([c.mean(axis=axis) for c in classes], axis=0)

    expected = stats.bootstrap(right, sigma, n_resamples=1000, method="basic", random_state=0).standard_error
    assert found.sigma[1:, 0].std(ddof=1) == pytest.approx(expected, rel=0.15)


def test_nothing_is_on_its_own_front():
    labels = np.repeat([0, 1, 2], 40)
    weights = draw_weights(labels, 0, 50)
    heldout = np.ones((1, 120), dtype=bool)
    nothing, even = (
        tally(predictions(labels, r, 1)[None], labels, heldout, weights, 3) for r in ((1, 0.9, 0.5), (0.7,) * 3)
    )
    assert (gap_to_front(nothing, [nothing], nothing) == 0).all()
    assert gap_to_front(even, [even], nothing)[0] == 0
    assert gap_to_front(nothing, [even], nothing)[0] == 0  # every front begins at the original model
    assert gap_to_front(even, [nothing], nothing)[0] == pytest.approx(even.clean[0, 0] - nothing.clean[0, 0])


def test_a_split_that_failed_is_left_out():
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], 60))
    base = predictions(labels, (1, 0.9, 0.4), 1)
    bias = predictions(labels, (0.8, 0.8, 0.7), 2)
    some = np.stack(
        [np.full(180, -1), predictions(labels, (0.7, 0.8, 0.7), 3), predictions(labels, (0.8, 0.6, 0.7), 4)]
    )
    fronts, splits = compared(labels, {"nothing": base, "class-bias": bias, "some": some}, count=3)
    row = fronts.row("some", 0.002)
    expected = []
    for i in (1, 2):
        heldout = splits[i].heldout.numpy()
        of = [
            compute_metrics(torch.from_numpy(p[heldout]), torch.from_numpy(labels[heldout]), 3)
            for p in (some[i], base, bias)
        ]
        expected.append([of[0].sigma, of[0].worst, of[0].accuracy - of[1].accuracy, of[0].accuracy - of[2].accuracy])
    sigma, worst, change, gain = np.mean(expected, axis=0)
    assert (row.splits, row.reasons) == (2, {0: "why"})
    assert (row.sigma, row.worst, row.delta_accuracy) == pytest.approx((sigma, worst, change))
    assert fronts.against_bias["some"].accuracy[0] == pytest.approx(gain)
    assert np.isfinite(fronts.against_bias["some"].figure).all()
    assert (row.as_dict()["failed_splits"], row.as_dict()["reason"]) == ([0], "why")


def test_an_entry_that_failed_everywhere_has_no_figures():
    labels = np.repeat([0, 1, 2], 20)
    entries = {"nothing": labels, "class-bias": labels, "some": np.full(60, -1)}
    row = compared(labels, entries)[0].row("some", 0.002)
    content = row.as_dict()
    assert (row.splits, row.paired) == (0, {})
    assert content["sigma"] is content["delta_accuracy"] is content["paired_vs_class_bias"] is None
    assert content["reason"] == "why"


RATES = {"nothing": (0.7, 0.85, 0.97), "class-bias": (0.80, 0.83, 0.87), "other": (0.76, 0.87, 0.93)}


def test_the_largest_loss_is_that_of_a_class_and_a_mean_over_splits():
    labels = np.repeat(np.arange(3), 2000)
    fronts, splits = compared(labels, {name: predictions(labels, rate, 0) for name, rate in RATES.items()})
    own = {name: fronts.predicted[f"{name}@{None if name == 'nothing' else 0.002}"] for name in RATES}
    held = [split.heldout[labels[split.heldout] == 2] for split in splits]
    lost = np.mean(
        [[(own[n][i, h] == 2).double().mean() for n in ("nothing", "class-bias")] for i, h in enumerate(held)], 0
    )
    assert fronts.row("class-bias", 0.002).loss == (pytest.approx(lost[0] - lost[1]), "c")
    assert fronts.row("class-bias", 0.002).as_dict()["largest_loss"]["class"] == "c"
    assert fronts.row("nothing").loss == (0.0, "a")


@pytest.mark.full
def test_more_accuracy_with_a_higher_sigma_is_a_trade_off_and_never_behind():
    """The other is more accurate than any point of class bias, and its σ is above that of each."""
    labels = np.repeat(np.arange(3), 4000)
    rates = RATES | {"class-bias": (0.83, 0.85, 0.88), "other": (0.80, 0.90, 0.97), "worse": (0.72, 0.83, 0.93)}
    fronts, _ = compared(labels, {name: predictions(labels, rate, 0) for name, rate in rates.items()})
    assert fronts.row("other", 0.002).beyond.interval[0] > 0
    assert fronts.row("other", 0.002).standing == "trade-off"
    assert fronts.row("worse", 0.002).standing == "behind"
    assert fronts.row("class-bias", 0.002).standing == "none"
    sentence = advise(fronts).sentence
    assert "Trade-off: against class bias at the same budget, other changes accuracy by +3." in sentence


@pytest.mark.parametrize(
    ("terms", "figure"),
    [
        (TERMS, lambda rate: None),
        (SurgeryConfig(target="worst"), lambda rate: 1 - rate.min()),
        (SurgeryConfig(targets={"a": 0.9, "c": 0.9}), lambda rate: np.maximum(0, 0.9 - rate[[0, 2]]).mean()),
    ],
)
def test_entries_are_compared_by_what_was_aimed_at(terms, figure):
    labels = np.repeat(np.arange(3), 2000)
    fronts, _ = compared(labels, {n: predictions(labels, rate, 0) for n, rate in RATES.items()}, terms=terms)
    gain = fronts.against_bias["other"]
    expected = [figure(np.array(RATES[name])) for name in ("other", "class-bias", "nothing")]
    if expected[0] is None:
        assert gain.figure[0] == fronts.row("other", 0.002).paired["class-bias"].difference
        assert fronts.bias_effect == fronts.row("class-bias", 0.002).sigma_change
    else:
        assert gain.figure[0] == gain.figure_at_budget[0] == pytest.approx(expected[0] - expected[1], abs=0.02)
        assert gain.figure_change[0] == pytest.approx(expected[0] - expected[2], abs=0.02)
        assert fronts.bias_effect.difference == pytest.approx(expected[1] - expected[2], abs=0.02)


def test_an_interval_leaves_its_level_outside():
    """It is centred on the value, even if the resamples are not."""
    draws = np.random.default_rng(0).normal(3.0, 2.0, 100_000)
    found = difference(np.concatenate([[7.0], draws]), 0.1)
    assert found.difference == 7.0
    assert found.interval == pytest.approx((7 - 2 * 1.645, 7 + 2 * 1.645), abs=0.03)


@pytest.mark.full
def test_chance_alone_is_rarely_called_a_difference():
    """Two entries are equally good: the 95 % interval should hold 0 in 38 of 40 cases."""
    labels = np.repeat([0, 1, 2], (200, 120, 80))
    covered = 0
    for seed in range(40):
        low, high = independent(labels, seed, (0.85, 0.8, 0.72)).interval
        covered += low <= 0 <= high
    assert covered >= 32


def test_a_real_difference_is_found():
    found = independent(np.repeat([0, 1, 2], (400, 240, 160)), 0, (0.7, 0.9, 0.5))
    assert 0 < found.interval[0] < found.difference < found.interval[1]


def independent(labels, seed, other):
    """An entry's σ against that of a class bias whose errors are independent of it."""
    rates = {"nothing": (0.97, 0.8, 0.5), "class-bias": (0.85, 0.8, 0.72), "other": other}
    entries = {name: predictions(labels, rate, [seed, i]) for i, (name, rate) in enumerate(rates.items())}
    return compared(labels, entries, seed)[0].row("other", 0.002).paired["class-bias"]


def test_with_targets_each_row_says_by_how_much_they_are_missed():
    labels = np.repeat(np.arange(3), 400)
    before, after = [0.5, 0.8, 0.9], [0.7, 0.8, 0.8]
    entries = {"nothing": predictions(labels, before, 0), "class-bias": predictions(labels, after, 1)}
    fronts, _ = compared(labels, entries, terms=SurgeryConfig(targets={"a": 0.75, "b": 0.7}))
    missed = [row.missed for row in fronts.rows]
    assert missed == pytest.approx([0.125, 0.025], abs=0.03)
    assert f"targets missed by {100 * missed[0]:.1f} pp on average" in table_rows(fronts)[0][-1]
    assert compared(labels, entries)[0].rows[0].missed is None
