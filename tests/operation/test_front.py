from itertools import pairwise

import numpy as np
import pytest

import hessian_surgery as hs
from conftest import operate
from hessian_surgery.model.smallnet import SmallNet
from hessian_surgery.operation.front import BUDGETS, banded, describe_front


@pytest.fixture(scope="module")
def outcome(_trained, digits_parts):
    model = SmallNet(10)
    model.load_state_dict(_trained)
    return operate(model, digits_parts, hs.SurgeryConfig(), front=True)


def test_points_keep_their_limits_and_more_room_never_hurts(outcome):
    front = outcome.front
    base, protected = np.array(front["base"]["per_class"]), front["protected"]
    assert base.tolist() == outcome.findings.calibration.metrics()[0].per_class
    assert [front["base"]["sigma"], len(protected) > 0] == [pytest.approx(np.std(base)), True]
    for aim in ("sigma", "worst"):
        points = [point for point in front["points"] if point["objective"] == aim]
        assert [point["budget"] for point in points] == list(BUDGETS)
        scores = [p["sigma"] if aim == "sigma" else -min(p["per_class"]) for p in points]
        assert scores[-1] <= scores[0]
        # Each point keeps its own margin, so it may do slightly worse than at a smaller budget.
        assert all(later < earlier + 0.01 for earlier, later in pairwise(scores))
        for point in points:
            share = np.array(point["per_class"])
            assert point["accuracy"] >= front["base"]["accuracy"] - point["budget"] - 1e-9
            assert (share >= base - outcome.choices["max_drop"] - 1e-9)[protected].all()
            assert point["sigma"] == pytest.approx(np.std(share))
            assert (np.array(point["low"]) <= share).all()
            assert (share <= np.array(point["high"])).all()


def test_the_default_is_a_point_of_its_own_front(outcome):
    """What it predicted for its step is what the front says at its budget."""
    point = next(p for p in outcome.front["points"] if (p["objective"], p["budget"]) == ("sigma", 0.002))
    assert point["per_class"] == outcome.iterations[0].predicted


def test_a_front_is_made_only_when_it_is_asked_for(trained, digits_parts):
    assert operate(trained, digits_parts, hs.SurgeryConfig()).front is None


def test_a_loop_has_no_front(trained, digits_parts):
    config = hs.LoopConfig(iterations=1, search=hs.SpikeSearch(hessian_samples=64))
    assert operate(trained, digits_parts, config).as_dict()["front"] is None


def test_a_band_holds_what_other_images_show():
    """Draw the truth, the images it was predicted from and the others: 19 of 20 are inside."""
    draw, inside = np.random.default_rng(0), []
    fitted, held = np.full(400, 40.0), np.full(400, 60.0)
    for _ in range(20):
        truth = draw.uniform(0.3, 0.98, 400)
        seen, other = draw.binomial(40, truth) / 40, draw.binomial(60, truth) / 60
        (point,) = banded([{"per_class": seen.tolist()}], fitted, held)
        inside.append(np.mean((point["low"] <= other) & (other <= point["high"])))
    assert 0.94 < np.mean(inside) < 0.985


def test_the_form_of_a_front():
    traced = {"protected": [1], "points": []}
    found = describe_front(traced, np.array([0.5, 0.9]), np.array([10.0, 30.0]), np.array([5.0, 5.0]))
    assert found == {
        "protected": [1],
        "base": {"accuracy": 0.8, "sigma": pytest.approx(0.2), "per_class": [0.5, 0.9]},
        "points": [],
    }
