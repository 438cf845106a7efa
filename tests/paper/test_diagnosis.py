import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import hessian_surgery as hs
from hessian_surgery.data.data_hash import data_hash
from hessian_surgery.data.splits import join_sets
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


def diagnose(model, parts, **options) -> hs.Diagnosis:
    return hs.diagnose(model, training_data=parts.training, calibration_data=parts.calibration, **options)


def test_spikes_cost_one_spectrum_and_one_matrix_and_change_nothing(trained, digits_parts, quick):
    before = {name: t.clone() for name, t in trained.state_dict().items()}
    found = diagnose(trained, digits_parts, config=quick, spikes="auto")
    assert all(torch.equal(t, before[name]) for name, t in trained.state_dict().items())
    assert np.array(found.spikes.sensitivity).shape == (9, 10)
    assert found.spikes.epsilon == pytest.approx(np.sqrt(0.1 / found.spikes.eigenvalues[0]))
    assert 1 <= found.spikes.structure.effective_rank <= 9
    content = json.loads(json.dumps(found.as_dict()))
    assert content["eigenvalues"] == found.spikes.eigenvalues
    assert len(diagnose(trained, digits_parts, config=quick, spikes=2, epsilon=0.1).spikes.eigenvalues) == 2


def test_a_diagnosis_takes_one_pass_over_the_calibration_images_and_names_them(trained, digits_parts):
    seen = []
    trained.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    found = diagnose(trained, digits_parts, config=hs.SurgeryConfig(batch_size=len(digits_parts.calibration)))
    # The rest are the checks of the model and of its head, on 32 and on 2 images.
    assert sorted(seen) == [2, 32, 32, 32, len(digits_parts.calibration)]
    assert found.spikes is None
    assert found.advice.startswith("Worth a comparison: σ is")
    assert found.model == "SmallNet"
    assert found.data == {
        "calibration": {"images": len(digits_parts.calibration), "sha256": data_hash(digits_parts.calibration)}
    }
    content = json.loads(json.dumps(found.as_dict()))
    assert content["metrics"]["count"]
    assert content["date"].endswith("+00:00")
    assert "eigenvalues" not in content
    with pytest.raises(hs.InputError, match=r"epsilon: got 0\.1, but no spikes are probed"):
        diagnose(trained, digits_parts, epsilon=0.1)


def test_training_images_among_the_calibration_images_are_named(trained, digits_parts):
    same = digits_parts.training
    found = hs.diagnose(trained, training_data=same, calibration_data=same)
    assert found.warnings[0].startswith(f"{len(same)} images of calibration_data are in training_data as well")
    one = digits_parts.training.subset(torch.tensor([3]))
    parts = replace(digits_parts, calibration=join_sets(digits_parts.calibration, one))
    assert diagnose(trained, parts).warnings[0].startswith("1 image of calibration_data is in training_data as well")


def metrics(accuracy, images) -> Metrics:
    labels = torch.arange(len(accuracy)).repeat_interleave(images)
    right = torch.cat([torch.arange(images) < round(a * images) for a in accuracy])
    return compute_metrics(torch.where(right, labels, (labels + 1) % len(accuracy)), labels, len(accuracy))


SEVERAL, ONE = (analyse(matrix, ("a", "b", "c")) for matrix in (np.eye(3), np.ones((3, 3))))


def test_advice():
    assert recommend(metrics([0.5, 0.8, 0.9], 100)) == recommend(metrics([0.5, 0.8, 0.9], 100), SEVERAL)
    assert recommend(metrics([0.5, 0.8, 0.9], 100), SEVERAL).startswith("Worth a comparison: σ is 17.0 pp")
    assert "hessian-surgery compare" in recommend(metrics([0.5, 0.8, 0.9], 100), SEVERAL)
    assert recommend(metrics([1.0, 0.0, 0.0], 100), SEVERAL).startswith("Look at the inputs first")
    assert "2 of 4 classes are below chance" in recommend(metrics([1.0, 0.9, 0.0, 0.1], 100), SEVERAL)
    assert recommend(metrics([1.0, 0.9, 0.0, 0.5], 100), SEVERAL).startswith("Worth a comparison")
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
