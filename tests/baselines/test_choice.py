import numpy as np

from hessian_surgery.baselines.choice import unbeaten


def test_no_kept_point_is_beaten_in_both():
    accuracy = np.array([0.90, 0.88, 0.86, 0.87, 0.84, 0.88])
    sigma = np.array([0.10, 0.06, 0.02, 0.07, 0.03, 0.08])
    assert unbeaten(accuracy, sigma) == [0, 1, 2]
