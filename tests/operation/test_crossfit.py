from dataclasses import replace

import numpy as np
import pytest
import torch

from hessian_surgery.evidence.class_noise import class_noise
from hessian_surgery.operation.coefficient_fit import PRICES, SHARES, fit_path
from hessian_surgery.operation.crossfit import FOLDS, LogitwiseSurrogate, Surrogate, cross_fit, make_folds
from hessian_surgery.operation.goal import Goal

FREE = Goal("sigma", 0.0, np.full(3, -np.inf))
COUNTS = (61, 30, 18)


def made_up(seed=0):
    """Three overlapping classes of different sizes, in random order, and five directions, three of
    them biases.
    """
    draw = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor(COUNTS))
    labels = labels[torch.randperm(len(labels), generator=draw)]
    logits = torch.randn(len(labels), 3, generator=draw) + torch.eye(3)[labels] + torch.tensor([0.8, 0.0, -0.5])
    biases = torch.eye(3)[:, None, :].expand(3, len(labels), 3)
    changes = torch.cat([biases, torch.randn(2, len(labels), 3, generator=draw)])
    return Surrogate(logits, changes, labels, 3)


def predict(surrogate, goal, seed=0):
    """All steps to first order."""
    return [step for ray in cross_fit(surrogate, goal, seed) for step in ray.steps()]


@pytest.fixture(scope="module")
def fitted():
    """A surrogate, its folds, and what is predicted of it; not to be changed."""
    surrogate = made_up()
    return surrogate, make_folds(surrogate.labels, 0), predict(surrogate, FREE)


def test_a_surrogate_by_hand():
    logits, changes = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[[1.0, 0], [0, 0]], [[0, 2.0], [0, -3]]])
    found = Surrogate(logits, changes, torch.tensor([0, 1]), 2)
    assert found.at(torch.tensor([0.5, 2.0])).tolist() == [[1.5, 4.0], [0.0, -4.0]]
    assert found.rates().accuracy == 1
    part = found.subset(torch.tensor([1]))
    assert (part.logits.tolist(), part.labels.tolist()) == ([[0.0, 2.0]], [1])
    assert part.at(torch.tensor([0.5, 2.0])).tolist() == [[0.0, -4.0]]


def test_changes_of_single_logits_are_the_dense_ones():
    surrogate = made_up()
    draw = torch.Generator().manual_seed(5)
    changes = torch.randn(2, len(surrogate.labels), 3, generator=draw)
    slim = LogitwiseSurrogate(surrogate.logits, changes, surrogate.labels, 3)
    dense = replace(surrogate, changes=(changes[:, None] * torch.eye(3)[:, None, :]).flatten(0, 1))
    coefficients = torch.randn(6, generator=draw)
    assert slim.size == dense.size == 6
    assert torch.allclose(slim.at(coefficients), dense.at(coefficients), atol=1e-6)
    some = torch.tensor([3, 50, 7])
    assert torch.allclose(slim.subset(some).at(coefficients), dense.at(coefficients)[some], atol=1e-6)


def test_every_fold_holds_an_even_part_of_each_class():
    labels = made_up().labels
    folds = make_folds(labels, 0)
    assert sorted(folds.unique().tolist()) == list(range(FOLDS))
    for label in range(3):
        sizes = torch.bincount(folds[labels == label], minlength=FOLDS)
        assert sizes.max() - sizes.min() <= 1
    assert not torch.equal(folds, make_folds(labels, 1))


def test_two_images_of_a_class_are_enough():
    surrogate = made_up()
    kept = torch.cat([(surrogate.labels < 2).nonzero()[:, 0], (surrogate.labels == 2).nonzero()[:2, 0]])
    found = predict(surrogate.subset(kept), FREE)
    assert all(np.isfinite(step.rates.per_class).all() for step in found)


def test_every_image_is_predicted_by_the_fit_to_the_other_folds(fitted):
    """Against fits and answers made by hand, at each price and share."""
    surrogate, folds, found = fitted
    assert len(found) == len(PRICES) * len(SHARES)
    steps = iter(found)
    paths = []
    for fold in range(FOLDS):
        others = surrogate.subset((folds != fold).nonzero()[:, 0])
        noise = class_noise(others.rates().per_class, torch.bincount(others.labels).numpy())
        paths.append(fit_path(others.at, 5, others.labels, 3, replace(FREE, noise=noise)))
    for number in range(len(PRICES)):
        for share in SHARES:
            step = next(steps)
            expected = torch.empty_like(surrogate.labels)
            for fold in range(FOLDS):
                coefficients = torch.tensor(share * paths[fold][number], dtype=torch.float32)
                mine = folds == fold
                expected[mine] = surrogate.at(coefficients)[mine].argmax(dim=1)
            # An answer may hang on the order of the sums, where two logits are equal but for
            # rounding.
            assert (step.answers != expected).sum() <= 1
            assert step.coefficients == pytest.approx(share * np.mean([path[number] for path in paths], axis=0))


def test_an_image_does_not_predict_itself(fitted):
    """With other logits of one image, the fits to the other folds and so the answers to its own
    fold stay.
    """
    surrogate, folds, found = fitted
    logits = surrogate.logits.clone()
    logits[7] = torch.tensor([-9.0, 9.0, 0.0])
    spoiled = predict(replace(surrogate, logits=logits), FREE)
    mine = folds == folds[7]
    mine[7] = False
    for one, two in zip(found, spoiled, strict=True):
        assert torch.equal(one.answers[mine], two.answers[mine])
        assert two.answers[7] == 1
    others = folds != folds[7]
    assert any(not torch.equal(a.answers[others], b.answers[others]) for a, b in zip(found, spoiled, strict=True))


def test_rates_are_those_of_the_predicted_answers(fitted):
    surrogate, _, found = fitted
    for step in found[::9]:
        right = step.answers == surrogate.labels
        assert step.rates.accuracy == pytest.approx(float(right.double().mean()))
        per_class = [float(right[surrogate.labels == label].double().mean()) for label in range(3)]
        assert step.rates.per_class.tolist() == pytest.approx(per_class)


def test_the_same_seed_gives_the_same_steps(fitted):
    surrogate, _, found = fitted
    again, other = predict(surrogate, FREE), predict(surrogate, FREE, seed=1)
    for one, two in zip(found, again, strict=True):
        assert one.coefficients.tolist() == two.coefficients.tolist()
        assert torch.equal(one.answers, two.answers)
    assert any(not torch.equal(one.answers, two.answers) for one, two in zip(found, other, strict=True))


class Bent:
    """Logits that a step with coefficients c changes by a linear part and by Σ c_k² times another;
    counts its calls.
    """

    def __init__(self, surrogate, size):
        drawn = torch.randn(surrogate.changes.shape, generator=torch.Generator().manual_seed(3))
        self.surrogate, self.second, self.calls = surrogate, size * drawn, 0

    def at(self, coefficients):
        c = torch.as_tensor(coefficients, dtype=torch.float32)
        return self.surrogate.at(c) + torch.einsum("k,knc->nc", c.square(), self.second)

    def __call__(self, coefficients, positions):
        self.calls += 1
        return self.at(coefficients)[positions]


def test_a_measured_ray_is_predicted_to_second_order():
    """Against logits that are quadratic in the step's length, at every share, each fold by the fit
    to the others.
    """
    surrogate = made_up()
    bent = Bent(surrogate, 0.5)
    for ray in cross_fit(surrogate, FREE)[::3]:
        steps, flat = ray.measured(bent).steps(), ray.steps()
        for share, step in zip(SHARES, steps, strict=True):
            expected = torch.empty_like(surrogate.labels)
            for fold, fit in enumerate(ray.fits):
                expected[ray.folds == fold] = bent.at(share * fit)[ray.folds == fold].argmax(dim=1)
            assert (step.answers != expected).sum() <= 1
        assert any(not torch.equal(a.answers, b.answers) for a, b in zip(steps, flat, strict=True))
        assert [a.coefficients.tolist() for a in steps] == [b.coefficients.tolist() for b in flat]
    assert bent.calls == len(PRICES) // 3 * FOLDS


def test_noise_is_that_of_the_starting_model():
    """After a step the starting model's answers still say which part of the accuracies is noise."""
    surrogate = made_up()
    moved = replace(surrogate, logits=surrogate.logits + 1.0 * torch.eye(3)[surrogate.labels])
    assert moved.noise().expected.tolist() != surrogate.noise().expected.tolist()
    kept = replace(moved, started=surrogate.logits.argmax(dim=1))
    assert kept.noise().expected.tolist() == surrogate.noise().expected.tolist()
    some = torch.arange(0, len(surrogate.labels), 2)
    assert kept.subset(some).noise().expected.tolist() == surrogate.subset(some).noise().expected.tolist()


def test_three_images_of_each_class_leave_a_fold_empty_and_nothing_is_looked_at_there():
    surrogate = made_up()
    kept = torch.cat([(surrogate.labels == label).nonzero()[:3, 0] for label in range(3)])
    small = surrogate.subset(kept)

    def look(coefficients, positions):
        assert len(positions) > 0
        return small.logits[positions]

    assert np.isfinite(cross_fit(small, FREE)[0].measured(look).steps()[-1].coefficients).all()
