from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import logits_at, make_surrogate
from hessian_surgery.operation.coefficient_fit import PRICES, SHARES
from hessian_surgery.operation.crossfit import cross_fit
from hessian_surgery.operation.goal import Goal
from hessian_surgery.operation.ladder import TAUS, Origin, climb, prior_shift

FREE = Goal("sigma", 0.0, np.full(3, -np.inf))
COUNTS = torch.tensor([600, 300, 100])


def made_up(seed=0, count=(240, 120, 60)):
    """Three overlapping classes, their three biases as directions, and two others."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor(count))
    logits = torch.randn(len(labels), 3, generator=draw) + torch.eye(3)[labels] + (COUNTS / 1000).log()
    return make_surrogate(logits, labels, torch.randn(2, len(labels), 3, generator=draw), shift=0.5)


def wild(coefficients, positions):
    """A network that answers one class to all along any step that is not of biases alone."""
    return torch.tensor([1e6, 0.0, 0.0]).expand(len(positions), 3)


def test_the_families_from_one_coefficient_to_all():
    surrogate = made_up()
    found = climb(surrogate, FREE, lambda c, i: logits_at(surrogate, c)[i], training_counts=COUNTS)
    nothing, prior, biases, every = found.rungs
    assert len(nothing) == 1
    assert not nothing[0].coefficients.any()
    assert torch.equal(nothing[0].answers, surrogate.logits.argmax(dim=1))
    assert (len(prior), len(biases), len(every)) == (len(TAUS), *(2 * [len(PRICES) * len(SHARES)]))
    assert all(not step.coefficients[3:].any() for step in (*prior, *biases))
    assert any(step.coefficients[3:].any() for step in every)
    alone = [step for ray in cross_fit(surrogate.without_directions(), FREE) for step in ray.steps()]
    assert [step.coefficients[:3].tolist() for step in biases] == [step.coefficients.tolist() for step in alone]


def test_a_prior_shift_takes_the_prior_out():
    surrogate = made_up()
    prior = climb(surrogate, FREE, wild, training_counts=COUNTS).rungs[1]
    whole = prior[TAUS.index(1.0)]
    expected = (surrogate.logits - (COUNTS / 1000).log()).argmax(dim=1)
    assert torch.equal(whole.answers, expected)
    applied = logits_at(surrogate, whole.coefficients).argmax(dim=1)
    assert (applied != expected).sum() <= 1


def test_no_prior_shift_for_equal_or_unknown_shares():
    surrogate = made_up()
    assert len(climb(surrogate, FREE, wild, training_counts=torch.tensor([5, 5, 5])).rungs) == 3
    assert len(climb(surrogate, FREE, wild, training_counts=torch.tensor([5, 0, 9])).rungs) == 3
    assert len(climb(surrogate, FREE, wild).rungs) == 3
    assert len(climb(replace(surrogate, shifts=None), FREE, wild, training_counts=COUNTS).rungs) == 2


def test_shares_by_hand():
    assert prior_shift(torch.tensor([1, 3]), 3).tolist() == pytest.approx([np.log(4), np.log(4 / 3), np.log(4 / 3)])


def test_what_measuring_spoils_gives_way_to_the_exact_directions_alone():
    surrogate = made_up()
    best = climb(surrogate, FREE, wild).choose(FREE).step
    assert best.coefficients[:3].any()
    assert not best.coefficients[3:].any()
    assert best.rates.sigma < surrogate.rates().sigma


def test_few_images_take_the_smaller_family():
    """With 20 to 5 images of a class one coefficient is taken more often than three."""
    taken = []
    for seed in range(12):
        surrogate = made_up(seed, (40, 20, 10))
        found = climb(surrogate.without_directions(), FREE, training_counts=COUNTS)
        step = found.choose(FREE).step
        taken.append(next(i for i, rung in enumerate(found.rungs) if any(step is one for one in rung)))
    assert taken.count(1) >= taken.count(2)
    assert taken.count(1) > 0


def test_a_target_never_ends_below_the_step_that_is_taken_without_it():
    """Steps fitted to σ are among those to choose from, after those fitted to the target."""
    surrogate = made_up()
    after = lambda c, i: logits_at(surrogate, c)[i]  # noqa: E731
    free = climb(surrogate, FREE, after, training_counts=COUNTS)
    aimed = replace(FREE, targets={2: 0.5})
    found = climb(surrogate, aimed, after, training_counts=COUNTS)
    for mine, theirs in zip(found.rungs[2:], free.rungs[2:], strict=True):
        assert len(mine) == 2 * len(theirs)
        assert [s.coefficients.tolist() for s in mine[len(theirs) :]] == [s.coefficients.tolist() for s in theirs]
    without = free.choose(FREE).step
    assert any(without.coefficients)
    assert aimed.score(found.choose(aimed).step.rates) <= aimed.score(without.rates)


def moved_origin(surrogate):
    """Part of the way along the last direction."""
    coefficients = np.eye(5)[4] * 0.4
    return Origin(coefficients, logits_at(surrogate, coefficients))


def test_from_an_origin_the_same_families_start_once_more():
    """Each step is what it would be for a network that is there already, seen from here."""
    surrogate = made_up()
    origin = moved_origin(surrogate)
    asked = []

    def after(coefficients, positions):
        asked.append(coefficients)
        return logits_at(surrogate, coefficients)[positions]

    found = climb(surrogate, FREE, after, training_counts=COUNTS, origin=origin)
    plain = climb(surrogate, FREE, after, training_counts=COUNTS)
    assert [len(rung) for rung in found.rungs] == 2 * [len(rung) for rung in plain.rungs]
    for one, other in zip(found.rungs[:4], plain.rungs, strict=True):
        assert [step.coefficients.tolist() for step in one] == [step.coefficients.tolist() for step in other]

    there = replace(surrogate, logits=origin.logits)
    asked.clear()
    own = climb(there, FREE, lambda c, i: after(origin.coefficients + c, i), training_counts=COUNTS)
    for one, other in zip(found.rungs[4:], own.rungs, strict=True):
        for step, same in zip(one, other, strict=True):
            assert step.coefficients.tolist() == pytest.approx((origin.coefficients + same.coefficients).tolist())
            assert torch.equal(step.answers, same.answers)
    (just,) = found.rungs[4]
    assert torch.equal(just.answers, logits_at(surrogate, origin.coefficients).argmax(dim=1))


def test_an_origin_and_targets():
    surrogate = made_up()
    origin = moved_origin(surrogate)
    aimed = replace(FREE, targets={2: 0.9})
    after = lambda c, i: logits_at(surrogate, c)[i]  # noqa: E731
    found = climb(surrogate, aimed, after, training_counts=COUNTS, origin=origin)
    free = climb(surrogate, FREE, after, training_counts=COUNTS, origin=origin)
    assert [len(rung) for rung in found.rungs] == [1, len(TAUS), *2 * [2 * len(PRICES) * len(SHARES)]] * 2
    for one, other in zip(found.without_targets.rungs, free.rungs, strict=True):
        assert [step.coefficients.tolist() for step in one] == [step.coefficients.tolist() for step in other]
