from dataclasses import replace

import numpy as np
import pytest
import torch

from hessian_surgery.evidence.accuracies import answer_rates
from hessian_surgery.evidence.class_noise import ClassNoise
from hessian_surgery.operation.choice import RESAMPLES, make_candidates
from hessian_surgery.operation.crossfit import PredictedStep
from hessian_surgery.operation.expected_gain import ExpectedGains
from hessian_surgery.operation.goal import Goal

FREE = Goal("sigma", 0.0, np.full(3, -np.inf))
LABELS = torch.repeat_interleave(torch.arange(3), torch.tensor([400, 400, 400]))


def step(*per_class, seed=0, name=1.0):
    """A step that answers a share of each class's images rightly; which ones is drawn."""
    draw = torch.Generator().manual_seed(seed)
    wrong = (LABELS + 1) % 3
    right = torch.zeros(len(LABELS), dtype=torch.bool)
    for label, share in enumerate(per_class):
        members = (label == LABELS).nonzero()[:, 0]
        right[members[torch.randperm(len(members), generator=draw)[: round(share * len(members))]]] = True
    answers = torch.where(right, LABELS, wrong)
    return PredictedStep(np.array([name]), answer_rates(answers, LABELS, 3), answers)


def test_resamples_are_of_each_class_alone():
    nothing = step(0.5, 0.8, 1.0)
    candidates = make_candidates([[nothing], [step(0.7, 0.8, 0.9)]], LABELS, 3)
    assert candidates.drawn.shape == (RESAMPLES, 2, 3)
    assert (candidates.drawn[:, 0, 2] == 1).all()
    spread = candidates.drawn[:, 0, 0]
    assert spread.mean() == pytest.approx(0.5, abs=0.01)
    assert spread.std() == pytest.approx(np.sqrt(0.25 / 400), rel=0.25)
    assert candidates.steps[0] is candidates.nothing is nothing


def test_the_best_step_within_the_limits_is_chosen():
    nothing, good = step(0.5, 0.8, 0.95), step(0.7, 0.8, 0.9)
    bold, unfair = step(0.75, 0.75, 0.75), step(0.8, 0.8, 0.7)
    candidates = make_candidates([[nothing], [good, bold, unfair]], LABELS, 3)
    assert candidates.choose(FREE).step is bold
    assert candidates.choose(replace(FREE, floor=0.78)).step is good
    limited = replace(FREE, limits=np.array([-np.inf, -np.inf, 0.8]))
    assert candidates.choose(limited).step is good
    assert candidates.choose(replace(FREE, floor=0.99)).step is nothing
    assert candidates.choose(replace(limited, limits=np.full(3, 0.97))).step is nothing


def test_a_limit_that_must_be_sure_is_met_by_standard_errors():
    nothing, near, far = step(0.5, 0.8, 0.95), step(0.8, 0.8, 0.905), step(0.6, 0.8, 0.94)
    candidates = make_candidates([[nothing], [near, far]], LABELS, 3)
    limited = replace(FREE, limits=np.array([-np.inf, -np.inf, 0.9]))
    assert candidates.choose(limited).step is near
    assert candidates.choose(replace(limited, limit_surety=1.28)).step is far
    changes = candidates.drawn.astype(np.float64) - candidates.drawn[:, :1]
    judged = candidates.judged_by(replace(limited, limit_surety=1.28))
    assert judged.margin == pytest.approx(1.28 * changes.std(axis=0), abs=1e-6)
    assert not candidates.judged_by(limited).margin.any()


def test_a_larger_family_must_be_better_by_more_than_noise():
    nothing, small = step(0.5, 0.8, 0.95), step(0.7, 0.8, 0.9, seed=1)
    hardly, clearly = step(0.702, 0.8, 0.9, seed=2), step(0.85, 0.85, 0.85, seed=3)
    assert make_candidates([[nothing], [small], [hardly]], LABELS, 3).choose(FREE).step is small
    assert make_candidates([[nothing], [small], [clearly]], LABELS, 3).choose(FREE).step is clearly


def test_the_best_of_many_equal_steps_is_known_to_be_luck():
    """A hundred steps with the same truth, seen on 1,200 images: what the best gains is luck."""
    draw = np.random.default_rng(0)
    truth = np.array([0.8, 0.8, 0.8])
    many = [step(*(draw.binomial(400, truth) / 400), seed=i) for i in range(101)]
    candidates = make_candidates([many[:1], many[1:]], LABELS, 3)
    assert min(FREE.score(one.rates) for one in many) < 0.5 * FREE.score(many[0].rates)
    assert candidates.choose(FREE).step is many[0]
    # A floor that only lucky steps reach is not believed.
    floor = max(found.rates.accuracy for found in many) - 0.001
    assert candidates.choose(replace(FREE, floor=floor)).step is many[0]


def test_luck_is_taken_off_the_accuracy_that_a_step_keeps():
    """Steps that even out the classes at the same true cost: the floor is kept with a margin."""
    draw = np.random.default_rng(1)
    many = [step(*(draw.binomial(400, [0.76, 0.76, 0.76]) / 400), seed=i) for i in range(60)]
    nothing = step(0.6, 0.75, 0.96)
    candidates = make_candidates([[nothing], many], LABELS, 3)
    chosen = candidates.choose(replace(FREE, floor=0.76))
    assert chosen.step is not nothing
    assert chosen.overstated > 0
    assert chosen.step.rates.accuracy > 0.763
    assert chosen.step.rates.sigma > min(one.rates.sigma for one in many if one.rates.accuracy >= 0.76)


def test_the_choice_is_among_accuracies_without_noise():
    """All of the first class's distance is known to be chance: lifting it is no gain."""
    nothing, lifted = step(0.7, 0.8, 0.8), step(0.8, 0.8, 0.8)
    candidates = make_candidates([[nothing], [lifted]], LABELS, 3)
    assert candidates.choose(FREE).step is lifted
    noise = ClassNoise(np.array([-0.1, 0.0, 0.0]), np.zeros(3), np.zeros(3))
    assert candidates.choose(replace(FREE, noise=noise)).step is nothing


def test_a_step_must_keep_the_budget_by_the_probabilities_too():
    """Both steps keep it by the labels; of one the probabilities expect a loss."""
    nothing, lifted, lucky = step(0.6, 0.8, 0.9), step(0.75, 0.8, 0.9), step(0.8, 0.8, 0.9)
    candidates = make_candidates([[nothing], [lifted, lucky]], LABELS, 3)
    goal = replace(FREE, floor=nothing.rates.accuracy)
    assert candidates.choose(goal).step is lucky
    gains = ExpectedGains(np.array([0.0, 0.0, -0.05]), np.array([0.0, 0.1, 0.1]))
    assert replace(candidates, gains=gains).choose(goal).step is lifted
