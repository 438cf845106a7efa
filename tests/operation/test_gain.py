import numpy as np
import pytest
import torch

from hessian_surgery.evidence.accuracies import Rates
from hessian_surgery.operation.gain import estimate_gain, is_worth_a_step, is_worth_another
from hessian_surgery.operation.goal import Goal
from hessian_surgery.operation.iteration_record import Gain

FREE = Goal("sigma", 0.0, np.full(3, -np.inf))


def answers():
    """Answers before and after, and labels, of 109 images of three classes of different sizes."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor([61, 30, 18]))

    def wrong(share):
        moved = torch.rand(len(labels), generator=draw) < torch.tensor(share)[labels]
        return torch.where(moved, (labels + 1) % 3, labels)

    return wrong([0.1, 0.3, 0.5]), wrong([0.2, 0.25, 0.3]), labels


@pytest.mark.parametrize("goal", [FREE, Goal("worst", 0.0, FREE.limits), Goal("sigma", 0.0, FREE.limits, {2: 0.9})])
def test_a_gain_is_that_of_the_scores_and_its_error_that_of_resampled_images(goal):
    before, after, labels = answers()
    assert (before != after).sum() > 5
    gain = estimate_gain(before, after, labels, goal)

    def score(answers, images):
        right = (answers == labels)[images].double()
        per_class = np.array([float(right[labels[images] == label].mean()) for label in range(3)])
        return goal.score(Rates(float(right.mean()), per_class))

    everything = torch.arange(len(labels))
    assert gain.predicted == pytest.approx(score(before, everything) - score(after, everything))
    draw, gains = torch.Generator().manual_seed(0), []
    groups = [(labels == label).nonzero()[:, 0] for label in range(3)]
    for _ in range(1500):
        images = torch.cat([g[torch.randint(len(g), (len(g),), generator=draw)] for g in groups])
        gains.append(score(before, images) - score(after, images))
    # The standard deviation of 200 resamples is itself known to about 5 %.
    assert gain.error == pytest.approx(np.std(gains), rel=0.2)
    assert estimate_gain(before, after, labels, goal) == gain


def test_the_same_answers_gain_nothing_for_certain():
    _, same, labels = answers()
    assert estimate_gain(same, same, labels, FREE).predicted == 0


def test_two_images_that_changed_are_no_certainty():
    before, after, labels = torch.tensor([0] * 100 + [0, 0]), torch.tensor([0] * 100 + [1, 1]), torch.arange(102) // 100
    gain = estimate_gain(before, after, labels, Goal("sigma", 0.0, np.full(2, -np.inf)))
    assert gain.predicted == pytest.approx(0.5)
    assert gain.error > 0.1


def test_what_is_known_to_be_luck_is_no_gain():
    before, after, labels = answers()
    plain = estimate_gain(before, after, labels, FREE)
    assert estimate_gain(before, after, labels, FREE, overstated=0.01).predicted == plain.predicted - 0.01


def test_when_a_step_and_another_iteration_are_worth_it():
    """Half a standard error for a step, six for another iteration; with a target too."""
    assert [is_worth_a_step(Gain(value, 0.01)) for value in (0.0049, 0.0051)] == [False, True]
    assert [is_worth_another(Gain(value, 0.01)) for value in (0.059, 0.061)] == [False, True]
