from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import logits_at, make_surrogate, whole_changes
from hessian_surgery.operation.coefficient_fit import PRICES, SHARES, _make_objective, fit_folds
from hessian_surgery.operation.crossfit import FOLDS, OTHER, cross_fit, make_folds
from hessian_surgery.operation.goal import Goal

FREE = Goal("sigma", 0.0, np.full(3, -np.inf))
COUNTS = (61, 30, 18)


def made_up(seed=0):
    """Three overlapping classes of different sizes, in random order, their biases, and two other
    directions.
    """
    draw = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor(COUNTS))
    labels = labels[torch.randperm(len(labels), generator=draw)]
    logits = torch.randn(len(labels), 3, generator=draw) + torch.eye(3)[labels] + torch.tensor([0.8, 0.0, -0.5])
    return make_surrogate(logits, labels, torch.randn(2, len(labels), 3, generator=draw), shift=1.0)


def some_of(surrogate, kept):
    """The same for some of the images."""
    started = None if surrogate.started is None else surrogate.started[kept]
    return replace(
        surrogate,
        logits=surrogate.logits[kept],
        labels=surrogate.labels[kept],
        outputs=surrogate.outputs[kept],
        changes=surrogate.changes[:, kept],
        started=started,
    )


def predict(surrogate, goal, seed=0):
    """All steps to first order."""
    return [step for ray in cross_fit(surrogate, goal, seed) for step in ray.steps()]


@pytest.fixture(scope="module")
def fitted():
    """A surrogate, its folds, and what is predicted of it; not to be changed."""
    surrogate = made_up()
    return surrogate, make_folds(surrogate.labels, 0), predict(surrogate, FREE)


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
    found = predict(some_of(surrogate, kept), FREE)
    assert all(np.isfinite(step.rates.per_class).all() for step in found)


def test_every_image_is_predicted_by_the_fit_to_the_other_folds(fitted):
    """Answers made by hand from the fits, at each price and share."""
    surrogate, folds, found = fitted
    assert len(found) == len(PRICES) * len(SHARES)
    steps = iter(found)
    fits = fit_folds(surrogate, FREE, folds)
    for number in range(len(PRICES)):
        for share in SHARES:
            step = next(steps)
            expected = torch.empty_like(surrogate.labels)
            for fold in range(FOLDS):
                mine = folds == fold
                expected[mine] = logits_at(surrogate, share * fits[fold, number])[mine].argmax(dim=1)
            # An answer may hang on the order of the sums, where two logits are equal but for
            # rounding.
            assert (step.answers != expected).sum() <= 1
            assert step.coefficients == pytest.approx(share * fits[:, number].mean(axis=0))


def test_an_image_does_not_predict_itself(fitted):
    """With other logits of one image, the fits without its fold minimise the same function."""
    surrogate, folds, found = fitted
    logits = surrogate.logits.clone()
    logits[7] = torch.tensor([-9.0, 9.0, 0.0])
    changes = whole_changes(surrogate, 3)
    spoiled = make_surrogate(logits, surrogate.labels, changes, shift=1.0)
    drawn = torch.randn(FOLDS * len(PRICES), 5, generator=torch.Generator().manual_seed(0))
    one, two = (_make_objective(made, FREE, folds).value_and_slope(drawn) for made in (surrogate, spoiled))
    mine = torch.arange(len(drawn)) // len(PRICES) == folds[7]
    assert torch.equal(one[mine], two[mine])
    assert (one[~mine] != two[~mine]).any(dim=1).all()
    others = folds != folds[7]
    again = predict(spoiled, FREE)
    assert all(step.answers[7] == 1 for step in again)
    assert any(not torch.equal(a.answers[others], b.answers[others]) for a, b in zip(found, again, strict=True))


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
        drawn = torch.randn(surrogate.size, *surrogate.logits.shape, generator=torch.Generator().manual_seed(3))
        self.surrogate, self.second, self.calls = surrogate, size * drawn, 0

    def at(self, coefficients):
        c = torch.as_tensor(coefficients, dtype=torch.float32)
        return logits_at(self.surrogate, c) + torch.einsum("k,knc->nc", c.square(), self.second)

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
    assert kept.noise(some).expected.tolist() == some_of(surrogate, some).noise().expected.tolist()


def test_three_images_of_each_class_leave_a_fold_empty_and_nothing_is_looked_at_there():
    surrogate = made_up()
    kept = torch.cat([(surrogate.labels == label).nonzero()[:3, 0] for label in range(3)])
    small = some_of(surrogate, kept)

    def look(coefficients, positions):
        assert len(positions) > 0
        return small.logits[positions]

    assert np.isfinite(cross_fit(small, FREE)[0].measured(look).steps()[-1].coefficients).all()


def many_outputs(seed=0, width=8, leading=4, size=3.0):
    """Six hundred images of eight classes whose biases are spread widely; only four outputs of each
    are modelled.
    """
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(600) % width
    logits = torch.randn(600, width, generator=draw) + 1.5 * torch.eye(width)[labels]
    logits += size * torch.linspace(-0.3, 0.3, width)
    return make_surrogate(logits, labels, torch.randn(2, 600, width, generator=draw), shift=1.0, leading=leading)


def test_an_output_that_is_not_modelled_can_win():
    """Against all logits, shifted: every answer is theirs."""
    surrogate = many_outputs().without_directions()
    folds = make_folds(surrogate.labels, 0)
    beaten = 0
    for ray in cross_fit(surrogate, Goal("sigma", 0.0, np.full(8, -np.inf))):
        for share, step in zip(SHARES, ray.followed().steps(), strict=True):
            shift = torch.tensor(share * ray.fits, dtype=torch.float32)[folds]
            exact = (surrogate.logits + shift).argmax(dim=1)
            assert (step.answers != exact).sum() <= 1
            beaten += int((surrogate.outputs != exact[:, None]).all(dim=1).sum())
    assert beaten > 0


def test_a_measured_ray_sees_what_is_not_modelled():
    """A network in which one output that is hardly ever modelled wins everything."""
    surrogate = many_outputs()
    (ray, *_) = cross_fit(surrogate, Goal("sigma", 0.0, np.full(8, -np.inf)))

    def look(_, positions):
        logits = surrogate.logits[positions].clone()
        logits[:, 0] += 1e3
        return logits

    whole = ray.measured(look).steps()[-1]
    rest = (surrogate.outputs != 0).all(dim=1)
    assert rest.any()
    assert (whole.answers[rest] == OTHER).all()
    assert (whole.answers[~rest] == 0).all()


def test_only_moving_images_are_measured():
    """The others take the change of their logits by biases, which is exact, and nothing else."""
    surrogate = made_up()
    moving = torch.arange(0, len(surrogate.labels), 3)
    still = torch.ones(len(surrogate.labels), dtype=torch.bool)
    still[moving] = False
    changes = surrogate.changes.clone()
    changes[:, still] = 0
    surrogate = replace(surrogate, changes=changes, moving=moving)
    bent = Bent(surrogate, 0.5)
    seen = []

    def look(fit, positions):
        seen.extend(positions.tolist())
        return bent(fit, positions)

    for ray in cross_fit(surrogate, FREE)[::3]:
        seen.clear()
        found = ray.measured(look)
        assert sorted(seen) == moving.tolist()
        assert found.bend[still].abs().max() < 1e-5
        assert torch.allclose(found.bend[moving], ray.measured(bent).bend[moving])
