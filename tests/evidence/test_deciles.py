import numpy as np
import pytest
import torch

from hessian_surgery.evidence.before_after import BeforeAfter
from hessian_surgery.evidence.deciles import GROUPS, deciles, form_groups, most_changed
from hessian_surgery.evidence.metrics import class_accuracy
from hessian_surgery.model.evaluation import Answers


def draw(before, after, count, seed):
    """Answers with given class accuracies (C,), `count` images (C,) of each class."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(before)), count)
    luck = rng.random(len(labels))
    found = []
    for rate in (before, after):
        predicted = torch.tensor(np.where(luck < rate[labels], labels, (labels + 1) % len(before)))
        found.append(Answers(predicted, torch.ones(len(labels)), torch.zeros(len(labels))))
    names = tuple(f"class {j}" for j in range(len(before)))
    return BeforeAfter(names, torch.arange(len(labels)), torch.tensor(labels), *found)


def test_groups_are_formed_on_the_calibration_images_and_measured_on_the_held_out_ones():
    """Accuracies of the two sets run in opposite orders: those of one would form other groups."""
    classes = 60
    rising = np.linspace(0.2, 0.9, classes)
    count = np.full(classes, 200)
    calibration = draw(rising, rising, count, 0)
    heldout = draw(rising[::-1], rising[::-1] + 0.05, count, 1)
    groups = deciles(calibration, heldout)
    formed, before, after = (
        class_accuracy(answers.predicted, images.labels, classes)
        for images, answers in (
            (calibration, calibration.before),
            (heldout, heldout.before),
            (heldout, heldout.after),
        )
    )
    assert [group.group for group in groups] == list(range(1, GROUPS + 1))
    assert sorted(j for group in groups for j in group.members) == list(range(classes))
    for group, weaker in zip(groups[1:], groups, strict=False):
        assert group.formed[0] >= weaker.formed[1]
        assert group.before < weaker.before
    for group in groups:
        members = list(group.members)
        assert group.formed == pytest.approx((formed[members].min(), formed[members].max()))
        assert group.before == pytest.approx(before[members].mean())
        assert group.after == pytest.approx(after[members].mean())
        assert group.change.difference == pytest.approx(group.after - group.before)


def test_groups_of_equal_classes_do_not_differ_by_luck():
    """Every class is equally good: groups that the held-out images had formed would differ."""
    rate = np.full(500, 0.7)
    count = np.full(500, 10)
    groups = deciles(draw(rate, rate, count, 0), draw(rate, rate, count, 1))
    assert max(group.before for group in groups) - min(group.before for group in groups) < 0.12
    assert groups[-1].formed[0] - groups[0].formed[1] > 0.2
    for group in groups:
        assert group.change.difference == 0
        assert group.change.interval[0] < 0 < group.change.interval[1]


def test_intervals_hold_the_truth():
    rng = np.random.default_rng(0)
    hit = dict.fromkeys(("before", "after", "change"), 0)
    total = 0
    for seed in range(100):
        before = rng.beta(7, 2, 100)
        after = before + 0.2 * (before.mean() - before)
        count = rng.integers(5, 40, 100)
        for group in deciles(draw(before, after, count, 2 * seed), draw(before, after, count, 2 * seed + 1)):
            members = list(group.members)
            old, new = before[members].mean(), after[members].mean()
            total += 1
            pairs = (old, group.before_interval), (new, group.after_interval), (new - old, group.change.interval)
            for name, (truth, (low, high)) in zip(hit, pairs, strict=True):
                hit[name] += low <= truth <= high
    assert min(hit.values()) >= 0.93 * total


def test_an_interval_of_equal_classes_is_that_of_all_their_images():
    rate = np.full(100, 0.8)
    images = draw(rate, rate, np.full(100, 50), 0)
    low, high = deciles(images, images)[4].before_interval
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(0.8 * 0.2 / 500), rel=0.15)


def test_form_groups_takes_nearly_equal_parts():
    groups = form_groups(np.linspace(1, 0, 43))
    assert {len(group) for group in groups} == {4, 5}
    assert groups[0].tolist() == [38, 39, 40, 41, 42]


def test_most_changed_leaves_out_classes_that_did_not_move():
    gained, lost = most_changed([0.5, 0.5, 0.5, 0.5], [0.7, 0.5, 0.4, 0.6], 3)
    assert (gained, lost) == ([0, 3], [2])
