import json
import math
import sys

import pytest
import torch
from benchmarks import scaling
from benchmarks.scaling_case import Point, make_case, sizes
from benchmarks.scaling_fit import SECONDS, STAGES, errors_left_out, fit, growth, predict

POINTS = [Point(c, n, w) for c in (10, 100, 1000) for n in (5000, 20_000) for w in (8, 24)]


def made_up(point, coefficient=1e-9):
    """A row of results in which every unit of work costs the same."""
    at = sizes(point)
    cost = {stage: coefficient * sum(term(at) for term in terms.values()) for stage, terms in STAGES.items()}
    seconds = {stage: cost[stage] for stage in SECONDS}
    return {"sizes": at, "seconds": seconds, "bytes": cost["bytes"], "accepted": True, "sigma": (0.1, 0.05)}


def test_sizes_are_those_of_the_network_and_its_images():
    point = Point(5, 1000, 3)
    net, sets = make_case(point)
    at = sizes(point)
    assert at["weights"] == sum(weight.numel() for weight in net.parameters())
    assert {name: len(part) for name, part in sets.items()} == {name: at[name] for name in sets}
    assert at["directions"] == 10  # 200 images of a class: calibration gradients as well
    assert sizes(Point(30, 600, 3))["directions"] == 20


def test_a_network_is_right_for_most_images_and_classes_differ():
    net, sets = make_case(Point(20, 2000, 8))
    images, labels = sets["heldout"].inputs(), sets["heldout"].labels
    with torch.no_grad():
        right = (net(images).argmax(dim=1) == labels).double()
    per_class = torch.zeros(20, dtype=torch.float64).index_add_(0, labels, right) / torch.bincount(labels)
    assert 0.7 < float(right.mean()) < 0.9
    assert float(per_class.std()) > 0.04


@pytest.mark.full
def test_a_point_is_measured_in_a_process_of_its_own():
    point = Point(3, 60, 2)
    row = scaling.run_apart(point, "cpu", 1, "cpu")
    assert row["sizes"] == sizes(point)
    assert set(row["seconds"]) == set(SECONDS)
    assert all(seconds >= 0 for seconds in row["seconds"].values())
    assert row["bytes"] > 0


@pytest.mark.parametrize("stage", STAGES)
def test_a_fit_predicts_a_point_that_it_has_not_seen(stage):
    rows = [made_up(point) for point in POINTS]
    coefficients = fit(rows[:-1], stage)
    wanted = rows[-1]["bytes"] if stage == "bytes" else rows[-1]["seconds"][stage]
    assert predict(coefficients, stage, rows[-1]["sizes"]) == pytest.approx(wanted, rel=0.01)
    assert min(coefficients.values()) >= 0


def test_a_stage_that_did_nothing_is_not_fitted_to():
    rows = [made_up(point) for point in POINTS]
    expected = fit(rows, "measure")
    idle = made_up(Point(100, 5000, 8), 0.0) | {"accepted": False}
    assert fit([*rows, idle], "measure") == expected
    rows[0]["accepted"] = False
    assert "measure" not in errors_left_out(rows, 0)


def test_growth_is_between_points_that_differ_in_classes_alone():
    rows = [made_up(Point(*at)) for at in [(10, 5000, 8), (1000, 5000, 8), (100, 5000, 8), (100, 5000, 24)]]
    for row in rows:
        row["bytes"] = row["sizes"]["classes"]
    found = growth(rows)
    assert [(step["from"], step["to"]) for step in found] == [(10, 100), (100, 1000)]
    assert [step["bytes"] for step in found] == [10, 10]
    assert found[0]["C log C"] == pytest.approx(10 * math.log(100) / math.log(10))


def test_measured_points_are_fitted_again(tmp_path, monkeypatch, capsys):
    path = tmp_path / "scaling.json"
    setting = {"device": "cpu", "clock": "wall", "threads": 2, "torch": "2"}
    path.write_text(json.dumps(setting | {"points": [made_up(point) for point in POINTS]}))
    monkeypatch.setattr(sys, "argv", ["scaling", "--again", "--out", str(path)])
    scaling.main()
    written = json.loads(path.read_text())
    assert len(written["left_out"]) == len(POINTS)
    assert abs(written["left_out"][-1]["total"]) < 0.01
    assert "within 25%: True" in capsys.readouterr().out
