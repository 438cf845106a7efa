import json

import numpy as np
import pytest
import torch

import hessian_surgery as hs
from hessian_surgery.evidence.effective_rank import MOST_PAIRS, analyse, entangled_pairs
from hessian_surgery.evidence.metrics import Metrics, compute_metrics
from hessian_surgery.paper.diagnosis import recommend


def test_structure_by_hand():
    structure = analyse(np.diag([3.0, 1.0]), ("a", "b"))
    assert structure.singular_values == pytest.approx([3, 1])
    assert structure.flatness == pytest.approx(3)
    assert structure.frobenius == pytest.approx(np.sqrt(10))
    assert structure.effective_rank == pytest.approx(np.exp(-(0.9 * np.log(0.9) + 0.1 * np.log(0.1))))
    assert analyse(np.ones((1, 2)), ("a", "b")).flatness is None


def test_entangled_pairs_are_those_of_opposite_signs_everywhere():
    matrix = np.random.default_rng(0).integers(-1, 2, size=(2, 30)).astype(float)
    names = tuple(f"class {j}" for j in range(30))
    pairs = [
        (names[j], names[k]) for j in range(30) for k in range(j + 1, 30) if (matrix[:, j] * matrix[:, k] < 0).all()
    ]
    assert len(pairs) > 5
    assert entangled_pairs(matrix, names) == pairs
    # Half of 2,000 classes against the other half would be a million pairs.
    many = np.ones((1, 2000))
    many[0, ::2] = -1
    assert len(entangled_pairs(many, tuple(map(str, range(2000))))) == MOST_PAIRS


def test_entangled_pairs_by_hand():
    matrix = np.array([[1.0, -1.0, 0.5], [-2.0, 1.0, 0.5]])
    assert entangled_pairs(matrix, ("cat", "dog", "ship")) == [("cat", "dog")]
    assert entangled_pairs(np.array([[1.0, 0.0]]), ("a", "b")) == []


def test_diagnosis_costs_one_spectrum_and_one_matrix_and_changes_nothing(trained, digits_parts, quick):
    before = {name: t.clone() for name, t in trained.state_dict().items()}
    found = hs.diagnose(
        trained, training_data=digits_parts.training, calibration_data=digits_parts.calibration, config=quick
    )
    assert all(torch.equal(t, before[name]) for name, t in trained.state_dict().items())
    assert np.array(found.sensitivity).shape == (9, 10)
    assert found.epsilon == pytest.approx(np.sqrt(0.1 / found.eigenvalues[0]))
    assert 1 <= found.structure.effective_rank <= 9
    assert found.advice.startswith("Worth a comparison: σ is")
    assert json.loads(json.dumps(found.as_dict()))["metrics"]["count"]


def metrics(accuracy, images) -> Metrics:
    labels = torch.arange(len(accuracy)).repeat_interleave(images)
    right = torch.cat([torch.arange(images) < round(a * images) for a in accuracy])
    return compute_metrics(torch.where(right, labels, (labels + 1) % len(accuracy)), labels, len(accuracy))


SEVERAL, ONE = (analyse(matrix, ("a", "b", "c")) for matrix in (np.eye(3), np.ones((3, 3))))


def test_advice():
    assert recommend(metrics([0.5, 0.8, 0.9], 100), SEVERAL).startswith("Worth a comparison: σ is 17.0 pp")
    assert "hessian-surgery compare" in recommend(metrics([0.5, 0.8, 0.9], 100), SEVERAL)
    assert recommend(metrics([1.0, 0.0, 0.0], 100), SEVERAL).startswith("Look at the inputs first")
    assert recommend(metrics([0.5, 0.8, 0.9], 100), analyse(np.zeros((2, 3)), ("a", "b", "c"))).startswith("Look at")
    assert recommend(metrics([0.78, 0.8, 0.82], 50), SEVERAL).startswith("Hardly worth operating")


def test_the_effective_rank_changes_what_to_expect_but_not_the_verdict():
    spread, level = metrics([0.5, 0.8, 0.9], 100), metrics([0.78, 0.8, 0.82], 100)
    assert "Few axes to move along (effective rank 1.0 of 3)" in recommend(spread, ONE)
    assert "Few axes" not in recommend(spread, SEVERAL)
    assert recommend(spread, ONE).startswith("Worth a comparison")
    assert recommend(level, ONE) == recommend(level, SEVERAL)


def test_the_same_spread_is_worth_more_with_more_images():
    assert recommend(metrics([0.7, 0.8, 0.9], 30), SEVERAL).startswith("Hardly worth operating")
    assert recommend(metrics([0.7, 0.8, 0.9], 100), SEVERAL).startswith("Worth a comparison")
