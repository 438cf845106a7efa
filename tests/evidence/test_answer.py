"""The headline, the costs, plain words and the weights that changed."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hessian_surgery.evidence.asked import Asked
from hessian_surgery.evidence.before_after import BeforeAfter
from hessian_surgery.evidence.calibration_error import calibration_change, calibration_error
from hessian_surgery.evidence.costs import cost_lines, cost_warnings, find_costs
from hessian_surgery.evidence.criteria import CheckedCriterion
from hessian_surgery.evidence.overfitting import overfitting_warning
from hessian_surgery.evidence.paired_tests import paired_tests
from hessian_surgery.evidence.plain_words import plain_words
from hessian_surgery.evidence.promises import check_promises
from hessian_surgery.evidence.verdict import judge
from hessian_surgery.model.evaluation import Answers, answers_of
from hessian_surgery.weights.changed import WeightChanges, count_changes
from hessian_surgery.weights.patch import make_patch


def images_from(before, after, images=200, seed=0):
    """Images of each class, right with these rates before and after."""
    draw = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(before)), images)
    luck = draw.random(len(labels))
    answers = []
    for rates in (before, after):
        right = luck < np.asarray(rates)[labels]
        predicted = torch.tensor(np.where(right, labels, (labels + 1) % len(before)))
        answers.append(Answers(predicted, torch.full((len(labels),), 0.8), torch.full((len(labels),), 0.5)))
    names = ("cat", "dog", "ship")[: len(before)]
    return BeforeAfter(names, torch.arange(len(labels)), torch.tensor(labels), *answers)


def verdict(images, criteria=(), asked=None):
    asked = asked or Asked(budget=0.002)
    tests = paired_tests(images)
    promises = check_promises(asked, images, tests.accuracy, tests.sigma)
    return judge(tests, len(images.labels), asked, promises, criteria)


def criterion(met):
    return CheckedCriterion("cat", "minimum_accuracy", 0.9, 0.8, (0.7, 0.85), met)


def test_better_is_good_only_if_all_that_was_asked_is_met():
    images = images_from([0.4, 0.9, 0.9], [0.8, 0.9, 0.9])
    found = verdict(images)
    assert (found.headline, found.tone) == ("Better", "good")
    assert verdict(images, (criterion(True),)).tone == "good"
    found = verdict(images, (criterion(True), criterion(False), criterion(True)))
    assert (found.outcome, found.headline, found.tone) == ("better", "Better, but 1 of 3 criteria not met", "mixed")
    assert found.sentence.startswith("Better, but 1 of 3 criteria not met (asked: ")
    broken = images_from([0.4, 0.9, 0.9], [0.85, 0.8, 0.9])
    found = verdict(broken, (criterion(False),), Asked(budget=0.5, limits={"dog": 0.02, "ship": 0.02}))
    assert found.headline == "Better, but 1 of 2 limits broken and 1 of 1 criterion not met"
    same = images_from([0.8, 0.8, 0.8], [0.8, 0.8, 0.8])
    found = verdict(same, (criterion(False),))
    assert (found.headline, found.tone) == ("No detectable change, and 1 of 1 criterion not met", "mixed")
    assert found.sentence.endswith("1 of 1 criterion not met.")
    assert verdict(images_from([0.8, 0.9, 0.9], [0.4, 0.9, 0.9]), (criterion(False),)).tone == "bad"


def test_the_aim_is_a_promise_of_its_own():
    images = images_from([0.4, 0.9, 0.9], [0.8, 0.9, 0.9])
    tests = paired_tests(images)
    first = check_promises(Asked(), images, tests.accuracy, tests.sigma)[0]
    assert (first.promise, first.state, first.met) == ("sigma", "reached", "yes")
    worst = check_promises(Asked("worst"), images, tests.accuracy, tests.worst)[0]
    assert (worst.promise, worst.met) == ("worst", "yes")
    swapped = BeforeAfter(images.classes, images.index, images.labels, images.after, images.before)
    tests = paired_tests(swapped)
    assert check_promises(Asked(), swapped, tests.accuracy, tests.sigma)[0].met == "no"
    assert check_promises(Asked("worst"), swapped, tests.accuracy, tests.worst)[0].met == "no"
    assert check_promises(Asked(targets={"cat": 0.5}), swapped, tests.accuracy, tests.sigma)[0].promise == "target"


def sharpened(factor, images=600):
    """Logits that are well calibrated, and the same logits times a factor."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(images, 3, generator=generator)
    labels = torch.multinomial(torch.softmax(logits, dim=1), 1, generator=generator).squeeze(1)
    pair = (answers_of(z, labels) for z in (logits, factor * logits))
    return BeforeAfter(("cat", "dog", "ship"), torch.arange(images), labels, *pair)


def test_loss_and_calibration_that_got_worse_are_named():
    images = sharpened(4.0)
    tests = paired_tests(images)
    costs = find_costs(tests, images.metrics()[1].count)
    calibration, loss = cost_warnings(costs)
    before, after = (100 * value for value in tests.calibration_error)
    assert calibration.startswith(
        f"probabilities are less well calibrated: calibration error {before:.1f} → {after:.1f} %"
    )
    assert "recalibrate fits one temperature" in calibration
    assert loss.startswith(f"the loss rose: {tests.nll[0]:.3f} → {tests.nll[1]:.3f} nats")
    assert not any("recalibrate fits one temperature" in line for line in cost_warnings(costs, remedied=False))
    assert [line.rpartition(": ")[2] for line in cost_lines(costs)] == ["none", *["worse beyond noise"] * 2]
    assert costs.as_dict() == {"lost": [], "loss_rose": True, "calibration_worsened": True}
    same = sharpened(1.0)
    assert cost_warnings(find_costs(paired_tests(same), same.metrics()[1].count)) == ()
    few = sharpened(4.0, 40)
    assert cost_warnings(find_costs(paired_tests(few), few.metrics()[1].count)) == ()


def test_a_rise_of_the_calibration_error_is_understated_rather_than_overstated():
    """Few images raise a small error more than a large one; 150 parts of 100,000 images."""
    whole = sharpened(2.0, 100_000)
    truth = calibration_error(whole.after, whole.labels) - calibration_error(whole.before, whole.labels)
    lows, seen = [], []
    for k in range(150):
        part = slice(600 * k, 600 * (k + 1))
        before, after = (Answers(*(t[part] for t in vars(a).values())) for a in (whole.before, whole.after))
        change = calibration_change(before, after, whole.labels[part], np.random.default_rng(k))
        lows.append(change.interval[0])
        seen.append(change.difference)
    assert np.mean(np.array(lows) <= truth) >= 0.97
    assert np.mean(np.array(lows) > 0) >= 0.95
    # The half width is 1.96 times the spread that the parts show.
    width = np.mean(np.array(seen) - np.array(lows)) / (1.96 * np.std(seen))
    assert 0.8 < width < 1.3


def test_no_rise_is_seen_where_there_is_none():
    """Before and after are as well calibrated as each other, with other answers."""
    false = 0
    for k in range(200):
        generator = torch.Generator().manual_seed(k)
        logits = 2 * torch.randn(400, 3, generator=generator)
        labels = torch.multinomial(torch.softmax(logits, dim=1), 1, generator=generator).squeeze(1)
        blurred = 0.9 * logits + 0.2 * torch.randn(400, 3, generator=generator)
        pair = (answers_of(z, labels) for z in (logits, blurred))
        false += calibration_change(*pair, labels, np.random.default_rng(k)).interval[0] > 0
    assert false / 200 <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / 200)


def test_classes_that_lost_come_with_intervals():
    images = images_from([0.5, 0.95, 0.9], [0.9, 0.7, 0.9], images=300)
    costs = find_costs(paired_tests(images), images.metrics()[1].count)
    (lost,) = costs.lost
    before, after = images.metrics()
    assert lost.name == "dog"
    assert lost.change.difference == pytest.approx(after.per_class[1] - before.per_class[1])
    assert lost.change.interval[0] < lost.change.difference < lost.change.interval[1] < 0
    assert cost_lines(costs)[0] == f"classes that lost beyond chance: dog {lost.change}"


def test_plain_words():
    images = images_from([0.5, 0.95, 0.9], [0.9, 0.7, 0.9], images=300)
    before, after = images.metrics()
    old, new, low = (round(100 * value) for value in (before.per_class[0], after.per_class[0], after.per_class[1]))
    assert plain_words(images, paired_tests(images)) == (
        f"Before, the weakest class (cat) was right {old} times in 100; now {new}. The weakest is now dog, right {low} "
        f"times in 100. Overall {100 * before.accuracy:.1f} → {100 * after.accuracy:.1f} %. One class gained and one "
        "lost beyond chance."
    )
    same = images_from([0.5, 0.95, 0.9], [0.5, 0.95, 0.9])
    assert plain_words(same, paired_tests(same)).endswith("No class gained or lost beyond chance.")


def test_of_a_class_with_few_images_plain_words_count_them():
    right = torch.tensor([False] * 40 + [True] * 200)
    labels = torch.tensor([0] * 40 + [1] * 200)
    answers = Answers(torch.where(right, labels, 1 - labels), torch.ones(240), torch.zeros(240))
    images = BeforeAfter(("logging", "os"), torch.arange(240), labels, answers, answers)
    said = plain_words(images, paired_tests(images))
    assert said.startswith("Before, the weakest class (logging) was right 0 of 40 times; now 0. Overall 83.3")


def test_changed_weights_are_counted_by_group(tmp_path: Path):
    base = {
        "conv.weight": torch.zeros(4, 3),
        "norm.running_mean": torch.zeros(4),
        "fc.weight": torch.zeros(2, 4),
        "fc.bias": torch.zeros(2),
    }
    names = [["conv.weight"], ["fc.weight", "tied.weight"], ["fc.bias"]]
    bias = base | {"fc.bias": torch.tensor([1.0, 0.0])}
    found = count_changes(base, bias, names, "fc")
    assert (found.weights, found.of, found.only_biases) == (1, 22, True)
    assert str(found) == "1 of 22 weights: the head's biases (1 of 2)"
    every = {name: tensor + 1 for name, tensor in base.items()}
    found = count_changes(base, every, names, "fc")
    assert str(found) == "22 of 22 weights: conv, the head's weights, the head's biases"
    assert not found.only_biases
    assert [group.name for group in count_changes(base, every, names, None).groups] == ["conv", "fc"]
    assert str(count_changes(base, base, names, "fc")) == "none of 22 weights"
    patch = make_patch(base, every, "file", '{"header": "é"}')
    patch.save(tmp_path / "patch.safetensors")
    assert patch.file_bytes == (tmp_path / "patch.safetensors").stat().st_size
    content = WeightChanges(22, 22, found.groups, patch.file_bytes)
    assert WeightChanges.from_dict(content.as_dict()) == content
    assert str(content).endswith(f"; the patch has {patch.file_bytes:,} bytes")


def test_of_few_images_of_every_class_no_class_is_said_to_have_changed_or_not():
    images = images_from([0.1, 0.9, 0.9], [0.9, 0.9, 0.9], images=30)
    said = plain_words(images, paired_tests(images))
    assert said.endswith("No class has 50 images, from which a change could be told.")


def test_overfitting_is_a_fall_on_calibration_images_beyond_that_on_others():
    heldout = images_from([0.4, 0.9, 0.9], [0.7, 0.9, 0.9])
    tests = paired_tests(heldout)
    assert overfitting_warning(heldout, tests) is None
    found = overfitting_warning(images_from([0.4, 0.9, 0.9], [0.9, 0.9, 0.9]), tests)
    assert found.startswith("overfitting: σ without sampling noise changed by -2")
    assert found.endswith(f"but by {tests.sigma} on the held-out images")
    in_folds = overfitting_warning(images_from([0.4, 0.9, 0.9], [0.9, 0.9, 0.9]), tests, folds=5)
    assert in_folds.endswith(f"but by {tests.sigma} on images while they were left out")


def test_no_change_is_written_without_a_minus():
    same = CheckedCriterion("cat", "maximum_drop", 0.05, 0.0, (-0.025, 0.025), True)
    assert same.figure == "+0.0 pp [-2.5, +2.5]"
    small = CheckedCriterion("cat", "maximum_drop", 0.05, 0.0004, (-0.01, 0.0001), True)
    assert small.figure == "+0.0 pp [+0.0, +1.0]"
