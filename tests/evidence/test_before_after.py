import numpy as np
import pytest
import torch
from scipy import stats

from hessian_surgery.evidence.asked import Asked
from hessian_surgery.evidence.before_after import BeforeAfter
from hessian_surgery.evidence.calibration_error import calibration_error
from hessian_surgery.evidence.metrics import class_accuracy
from hessian_surgery.evidence.paired_tests import Flow, flows, paired_tests
from hessian_surgery.evidence.promises import check_promises
from hessian_surgery.evidence.resampled_pairs import pair_counts, resample_pairs
from hessian_surgery.evidence.verdict import judge
from hessian_surgery.model.evaluation import Answers


def answers(predicted, confidence=None):
    sure = torch.full((len(predicted),), 0.8) if confidence is None else torch.tensor(confidence)
    return Answers(predicted, sure, torch.zeros(len(predicted)))


def comparison(before, after, labels, classes):
    names = tuple(str(i) for i in range(classes))
    return BeforeAfter(names, torch.arange(len(labels)), labels, answers(before), answers(after))


def simulate(seed, before, after, images=200, churn=0.3):
    """Answers with given class accuracies; a share `churn` of the images draws its luck again."""
    rng = np.random.default_rng(seed)
    classes = len(before)
    labels = np.repeat(np.arange(classes), images)
    wrong = (labels + 1) % classes
    luck = rng.random(len(labels))
    fresh = np.where(rng.random(len(labels)) < churn, rng.random(len(labels)), luck)
    old = np.where(luck < np.array(before)[labels], labels, wrong)
    new = np.where(fresh < np.array(after)[labels], labels, wrong)
    return comparison(torch.tensor(old), torch.tensor(new), torch.tensor(labels), classes)


def test_differences_and_counts():
    images = simulate(0, [0.5, 0.9, 0.9], [0.8, 0.9, 0.85])
    before, after, labels = images.before.predicted, images.after.predicted, images.labels
    tests = paired_tests(images)
    old, new = (class_accuracy(p, labels, 3) for p in (before, after))
    assert tests.sigma.difference == pytest.approx(tests.sigma_corrected[1] - tests.sigma_corrected[0])
    assert [s < np.std(a) for s, a in zip(tests.sigma_corrected, (old, new), strict=True)] == [True, True]
    assert tests.accuracy.difference == pytest.approx(new.mean() - old.mean())
    assert tests.worst.difference == pytest.approx(new.min() - old.min())
    assert tests.churn == pytest.approx(float((before != after).double().mean()))
    for j, test in enumerate(tests.per_class):
        own = labels == j
        assert test.gained == int(((before != labels) & (after == labels) & own).sum())
        assert test.lost == int(((before == labels) & (after != labels) & own).sum())
        assert test.as_dict()["class"] == str(j)
        assert test.claim
    assert tests.per_class[0].p_holm < 0.001
    assert not paired_tests(simulate(0, [0.5, 0.9], [0.8, 0.9], images=49)).per_class[0].claim


def test_intervals_agree_with_scipys_bootstrap():
    """The multinomial draw against scipy.stats.bootstrap over images, for a paired mean."""
    images = simulate(1, [0.7], [0.8], images=300)
    change = (images.after.predicted == images.labels).double() - (images.before.predicted == images.labels).double()
    reference = stats.bootstrap((change.numpy(),), np.mean, method="percentile", n_resamples=9999, rng=0)
    found = paired_tests(images).accuracy.interval
    assert found == pytest.approx(tuple(reference.confidence_interval), abs=0.006)


def test_loss_interval_is_the_paired_t_interval():
    images = simulate(0, [0.6, 0.8], [0.7, 0.8])
    rng = np.random.default_rng(0)
    change = torch.tensor(rng.normal(0.1, 1, len(images.labels)))
    moved = Answers(images.after.predicted, images.after.confidence, change)
    tests = paired_tests(BeforeAfter(images.classes, images.index, images.labels, images.before, moved))
    reference = stats.ttest_1samp(change.numpy(), 0).confidence_interval(0.95)
    assert tests.nll_change.interval == pytest.approx((reference.low, reference.high), rel=0.02)
    assert tests.nll == pytest.approx((0.0, float(change.mean())))


def verdict(seed, before, after, asked=None, **options):
    asked = asked or Asked(budget=0.002)
    images = simulate(seed, before, after, **options)
    tests = paired_tests(images)
    return judge(tests, len(images.labels), asked, check_promises(asked, images, tests.accuracy))


def test_verdicts():
    assert verdict(0, [0.4, 0.9, 0.9], [0.8, 0.9, 0.9]).outcome == "better"
    assert verdict(0, [0.8, 0.9, 0.9], [0.4, 0.9, 0.9]).outcome == "worse"
    assert verdict(0, [0.8, 0.8, 0.8], [0.6, 0.6, 0.6]).outcome == "worse"
    assert verdict(0, [0.8, 0.9, 0.9], [0.8, 0.9, 0.9]).outcome == "no detectable change"
    levelled = verdict(0, [0.7, 0.9, 0.95], [0.45, 0.5, 0.5])
    assert levelled.outcome == "worse"
    assert "on average" in levelled.sentence
    assert verdict(0, [0.2, 0.9, 0.9], [0.8, 0.9, 0.6]).sentence.endswith("; lost significantly: 2 (60 images).")
    few = verdict(0, [0.1, 0.9, 0.9], [0.9, 0.9, 0.9], images=16)
    assert few.sentence == "No claim can be made from 48 held-out images."


def test_a_loss_within_the_budget_does_not_spoil_a_gain():
    """σ falls by some 15 pp and accuracy by some 8: more than 0.2 pp, but less than 20 pp."""
    profiles = [0.5, 0.95, 0.95], [0.7, 0.73, 0.73]
    dear = verdict(0, *profiles, asked=Asked(budget=0.002), images=500)
    assert dear.outcome == "worse"
    assert "more than the 0.2 pp allowed" in dear.sentence
    cheap = verdict(0, *profiles, asked=Asked(budget=0.2), images=500)
    assert cheap.outcome == "better"
    assert cheap.sentence.startswith(
        "Better (asked: a lower σ for at most 20 pp of accuracy): σ without sampling noise"
    )
    assert verdict(0, *profiles, asked=Asked(), images=500).outcome == "worse"


def test_a_loss_within_the_budget_without_a_gain_in_sight_is_not_worse():
    """All classes lose some 10 pp alike."""
    profiles = [0.7, 0.8, 0.9], [0.6, 0.7, 0.8]
    allowed = verdict(0, *profiles, asked=Asked(budget=0.2), images=500)
    assert allowed.outcome == "no detectable change"
    assert "is within noise, for accuracy that the budget allows to lose" in allowed.sentence
    assert allowed.sentence.endswith(" Keep the original model.")
    spent = verdict(0, *profiles, asked=Asked(budget=0.002), images=500)
    assert spent.outcome == "worse"
    assert "no detectable gain" in spent.sentence
    without = verdict(0, *profiles, asked=Asked(), images=500)
    assert without.outcome == "worse"


def test_the_worst_class_decides_if_it_was_aimed_at():
    """It rises and σ rises with it, because other classes rise further; then it falls instead."""
    profiles = [0.4, 0.45, 0.5, 0.5], [0.55, 0.6, 0.95, 0.95]
    found = verdict(0, *profiles, asked=Asked("worst", 0.0), images=400)
    assert found.outcome == "better"
    assert found.sentence.startswith("Better (asked: a better worst class for at most 0 pp of accuracy): worst class +")
    assert verdict(0, *profiles, images=400).outcome == "worse"
    assert verdict(0, *profiles[::-1], asked=Asked("worst", 0.5), images=400).outcome == "worse"
    assert verdict(0, *profiles[:1] * 2, asked=Asked("worst", 0.0), images=400).outcome == "no detectable change"


def test_targets_decide_if_there_are_any():
    """Whatever σ does: the first class leaves the others behind."""
    profiles = [0.8, 0.8, 0.8], [0.98, 0.8, 0.8]
    reached = verdict(0, *profiles, asked=Asked(targets={"0": 0.9}), images=400)
    assert reached.outcome == "better"
    assert reached.sentence.startswith("Better (asked: the targets 0 90 %): 0 9")
    assert "] reached on held-out images" in reached.sentence
    nearer = verdict(0, [0.6, 0.8, 0.8], [0.75, 0.8, 0.8], asked=Asked(targets={"0": 0.9}), images=400)
    assert nearer.outcome == "better"
    assert "] missed on held-out images" in nearer.sentence
    same = verdict(0, *profiles[:1] * 2, asked=Asked(targets={"0": 0.9}), images=400)
    assert (same.outcome, same.sentence.split()[-4:]) == ("no detectable change", ["Keep", "the", "original", "model."])
    fallen = verdict(0, *profiles[::-1], asked=Asked(targets={"0": 0.99}), images=400)
    assert fallen.outcome == "worse"


def test_who_reached_the_targets_is_not_told_to_keep_the_original_model():
    """Not even if that cost more than was allowed, which is said."""
    asked = Asked(budget=0.01, targets={"0": 0.8})
    found = verdict(0, [0.5, 0.95, 0.95], [0.95, 0.5, 0.5], asked=asked, images=400)
    assert found.outcome == "worse"
    assert "] reached on held-out images, but the classes lost more than the 1 pp allowed" in found.sentence
    assert "Keep the original" not in found.sentence
    labels = torch.arange(300) % 3
    images = comparison(labels, labels, labels, 3)
    tests = paired_tests(images)
    untouched = judge(tests, 300, asked, check_promises(asked, images, tests.accuracy))
    assert untouched.sentence == "No prediction changed: every target is reached as it is."


def test_broken_limits_are_named():
    asked = Asked(budget=0.5, limits={"1": 0.02, "2": 0.02})
    found = verdict(0, [0.4, 0.9, 0.9], [0.85, 0.8, 0.9], asked=asked, images=400)
    assert found.outcome == "better"
    assert "; lost more than allowed: 1 (-" in found.sentence


@pytest.mark.full
@pytest.mark.parametrize("churn", [0.05, 0.5])
def test_nothing_is_found_if_nothing_changed(churn):
    """200 operations that only reshuffle errors: findings in at most 5 % plus 3 standard errors."""
    profile = np.linspace(0.5, 0.95, 10)
    none = "no detectable change"
    found = [verdict(seed, profile, profile, images=60, churn=churn).outcome != none for seed in range(200)]
    assert np.mean(found) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)


def test_identical_answers_change_nothing():
    labels = torch.arange(90) % 3
    tests = paired_tests(comparison(labels, labels, labels, 3))
    assert tests.sigma.interval == (0.0, 0.0)
    found = judge(tests, 90, Asked())
    assert found.outcome == "no detectable change"
    assert found.sentence.startswith("No prediction changed")
    assert tests.flows == ()


def test_flows_by_hand():
    labels = torch.tensor([0] * 6 + [1] * 2)
    before = torch.tensor([1, 1, 2, 0, 0, 0, 1, 1])
    after = torch.tensor([0, 0, 0, 0, 5, 0, 1, 1])
    (flow,) = flows(comparison(before, after, labels, 3))
    assert (flow.gained, flow.gained_from) == (3, {"1": 2, "2": 1})
    assert (flow.lost, flow.lost_to) == (1, {"output 5": 1})
    more = Flow("a", 6, {"b": 3, "c": 2, "d": 1}, 0, {})
    assert str(more) == "a gained 6 (3 from b, 2 from c, 1 from others)"
    assert str(flow) == "0 gained 3 (2 from 1, 1 from 2) and lost 1 (1 to output 5)"


def test_calibration_error_by_hand():
    """Two bins: confidence 0.9 with 1 of 2 right, confidence 0.6 with 2 of 2 right."""
    labels = torch.tensor([0, 0, 1, 1])
    given = answers(torch.tensor([0, 1, 1, 1]), [0.9, 0.9, 0.6, 0.6])
    assert calibration_error(given, labels) == pytest.approx(0.5 * 0.4 + 0.5 * 0.4)


def test_answers_can_be_saved_and_read_again():
    images = simulate(0, [0.5, 0.9], [0.8, 0.9], images=60)
    again = BeforeAfter.from_tensors(images.tensors(), images.classes)
    assert paired_tests(again) == paired_tests(images)


def test_flows_of_many_classes_count_every_image_once():
    images = simulate(0, np.linspace(0.3, 0.9, 30), np.linspace(0.5, 0.8, 30), images=40)
    right_before, right_after = (a.predicted == images.labels for a in (images.before, images.after))
    found = {flow.name: flow for flow in flows(images)}
    for j, name in enumerate(images.classes):
        own = images.labels == j
        gained, lost = int((own & ~right_before & right_after).sum()), int((own & right_before & ~right_after).sum())
        flow = found.get(name, Flow(name, 0, {}, 0, {}))
        assert (flow.gained, flow.lost) == (gained, lost)
        # Wrong answers go to the next class.
        following = images.classes[(j + 1) % 30]
        assert flow.gained_from == ({following: gained} if gained else {})
        assert flow.lost_to == ({following: lost} if lost else {})
    assert flows(comparison(images.labels, images.labels, images.labels, 30)) == ()


def test_resamples_do_not_depend_on_how_many_are_drawn_at_a_time(monkeypatch):
    kinds = pair_counts(simulate(0, [0.5, 0.9, 0.7], [0.8, 0.9, 0.6]))
    whole = resample_pairs(kinds, np.random.default_rng(0), 100)
    monkeypatch.setattr("hessian_surgery.evidence.resampled_pairs.ROWS", 7)
    again = resample_pairs(kinds, np.random.default_rng(0), 100)
    assert np.array_equal(whole.drawn_before, again.drawn_before)
    assert np.array_equal(whole.drawn_after, again.drawn_after)
