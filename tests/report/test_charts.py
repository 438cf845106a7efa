import xml.etree.ElementTree as ET

import numpy as np
import pytest

from hessian_surgery.report import charts
from hessian_surgery.report.svg import Panel, look, power, spread, ticks


def record(accepted, sigma, amplitude):
    return {"accepted": accepted, "sigma": sigma, "candidate_sigma": sigma + 0.01, "alpha_max": amplitude}


def test_accepted_and_rolled_back_iterations_look_different():
    records = [record(True, 0.1, 0.5), record(False, 0.1, 0.4), record(False, 0.1, 0.0)]
    drawn = charts.convergence({"sigma": 0.2}, records)
    ET.fromstring(drawn)
    assert drawn.count("cross") == 1
    assert "1: accepted; 2: rolled back" in drawn
    bars = ET.fromstring(charts.amplitudes(records)).findall("rect")
    assert [bar.get("class") for bar in bars] == ["mark c1", "mark c2 hollow", "mark c2 hollow"]


def test_unconverged_spikes_are_hollow():
    drawn = charts.spectrum([20.0, 5.0, 1.0], [1e-5, 0.02, 0.5], 0.01)
    ET.fromstring(drawn)
    assert drawn.count("circle") == 3
    assert drawn.count('class="mark c2 hollow"') == 2
    residuals = charts.residual_chart([1e-5, 0.02, 0.0], 0.01)
    ET.fromstring(residuals)
    assert "1 of 3 above the tolerance" in residuals


def test_a_heat_map_has_every_cell_that_is_not_zero_and_stays_small():
    matrix = np.random.default_rng(0).standard_normal((200, 100)).tolist()
    drawn = charts.heat_map(matrix, [f"row {i}" for i in range(200)], [f"class {j}" for j in range(100)])
    paths = ET.fromstring(drawn).find("g").findall("path")
    assert len(paths) <= 2 * charts.SHADES
    cells = sum(path.get("d").count("M") for path in paths)
    assert 19_000 < cells <= 20_000
    assert len(drawn) < 800_000
    small = charts.heat_map([[0.0, 2.0], [-1.0, 0.01]], ["a", "b"], ["<c>", "d"])
    texts = [t.text for t in ET.fromstring(small).iter("text")]
    assert {"+2.0", "−1.0", "<c>"} <= set(texts)
    assert "+0.0" not in texts


def test_all_zero_matrices_and_single_rows_can_be_drawn():
    ET.fromstring(charts.heat_map([[0.0, 0.0]], ["a"], ["b", "c"]))
    ET.fromstring(charts.spectrum([3.0], [0.0], 0.01))
    ET.fromstring(charts.convergence({"sigma": 0.2}, [record(False, 0.2, 0.0)]))
    ET.fromstring(charts.amplitudes([record(False, 0.2, 0.0)]))


def test_a_front_shows_methods_that_change_something_and_ran():
    rows = [
        {"name": n, "splits": s, "delta_accuracy": 0.01, "sigma": 0.1, "sigma_se": 0.01, "worst": 0.5}
        for n, s in (("nothing", 2), ("class-bias", 2), ("surgery", 2), ("loop", 0))
    ]
    drawn = ET.fromstring(charts.front(rows, {"sigma": 0.2}, "sigma", "σ"))
    assert len(drawn.findall("polyline")) == 2
    assert charts.front_names(rows) == ["class-bias", "surgery"]
    legend = charts.front_legend(rows)
    assert "the model as it is" in legend
    assert legend.count("<li>") == 3


def test_series_can_be_told_apart_without_colour():
    looks = [look(i) for i in range(24)]
    assert len({(shape, stroke) for _, shape, stroke in looks}) >= 20
    assert len(set(looks)) == 24


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3.2, 17), (0.001, 0.0024), (95, 100), (5, 5.0000001)])
def test_ticks_are_few_round_and_inside(low, high):
    found = ticks(low, high)
    assert len(found) <= 7
    assert all(low - 1e-9 <= value <= high + 1e-9 for value in found)


def test_places_and_powers():
    panel = Panel(10, 20, 100, 50, (0, 2), (0, 1))
    assert panel.at(0, 0) == (10, 70)
    assert panel.at(2, 1) == (110, 20)
    assert [power(e) for e in (-4, -2, 0, 3)] == ["10⁻⁴", "0.01", "1", "1,000"]
    low, high = spread([3.0, 3.0])
    assert low < 3 < high


def test_intervals_and_flows_are_in_percent_of_their_cell():
    row = ET.fromstring(charts.interval_row(0.5, (0.7, 0.75, 1.0), (0.4, 0.5, 0.6), "up"))
    assert [line.get("x1") for line in row.findall("line")] == ["0.0%", "40.0%"]
    assert row.findall("circle")[1].get("cx") == "50.0%"
    bar = charts.flow_bar(5, 10, "down")
    assert 'x="60.0%" width="40.0%"' in bar
