import numpy as np

from hessian_surgery.baselines.choice import choose_within_floor
from hessian_surgery.evidence.accuracies import Rates


def test_the_least_sigma_above_the_floor_is_chosen():
    found = [
        Rates(0.90, np.array([1.0, 0.8])),
        Rates(0.88, np.array([0.9, 0.86])),
        Rates(0.85, np.array([0.85, 0.85])),
        Rates(0.89, np.array([0.91, 0.87])),  # the σ of the second, and more accurate
    ]
    assert choose_within_floor(found, 0.895) == 0
    assert choose_within_floor(found, 0.88) == 3
    assert choose_within_floor(found, 0.85) == 2
    assert choose_within_floor(found, 0.9) == 0  # at the floor is allowed
    assert choose_within_floor(found[1:], 0.91) == 0  # none is: the first, which does nothing
