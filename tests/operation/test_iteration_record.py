import numpy as np
import pytest

from hessian_surgery.evidence.deciles import MANY_CLASSES
from hessian_surgery.operation.iteration_record import Responses


def responses(biases, others, classes):
    names = [f"bias {i}" for i in range(biases)] + [f"other {i}" for i in range(others)]
    values = np.random.default_rng(0).normal(size=(len(names), classes))
    return Responses(names, "coefficient", values.tolist())


def test_of_few_classes_all_responses_are_kept_to_six_digits():
    given = responses(10, 10, MANY_CLASSES)
    kept = given.recorded(np.zeros(20))
    assert (kept.directions, kept.unit) == (given.directions, given.unit)
    assert np.array(kept.values) == pytest.approx(np.array(given.values), rel=1e-5)
    assert all(len(f"{abs(value):.12g}".replace(".", "").lstrip("0")) <= 6 for row in kept.values for value in row)
    assert kept.recorded(np.zeros(20)) == kept  # a resumed run keeps what it had kept


def test_of_many_classes_those_that_the_step_goes_furthest_along_are_kept():
    """The step has 50 biases before them, which have no responses here."""
    given = responses(0, 60, 50)
    coefficients = np.zeros(110)
    coefficients[[0, 109, 70]] = 9.0, -2.0, 1.0
    kept = given.recorded(coefficients)
    assert len(kept.directions) == MANY_CLASSES
    assert {"other 59", "other 20"} < set(kept.directions)
    assert kept.values[-1] == pytest.approx(given.values[59], rel=1e-5)
