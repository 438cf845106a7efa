import xml.etree.ElementTree as ET

import numpy as np
import pytest

from hessian_surgery.report import page_charts
from hessian_surgery.report.figure_data import (
    Responses,
    front_lines,
    front_names,
    iteration_outcome,
    make_convergence,
    make_spikes,
    step_length,
    weakest_first,
)
from hessian_surgery.report.svg import Panel, look, power, spread, ticks


def record(accepted, sigma, length, key="length"):
    return {"accepted": accepted, "sigma": sigma, "candidate_sigma": sigma + 0.01, key: length}


def heat_map(values, directions, classes):
    return page_charts.heat_map(Responses(directions, classes, values, "length"))


def test_accepted_and_rolled_back_iterations_look_different():
    records = [record(True, 0.1, 0.5), record(False, 0.1, 0.4), record(False, 0.1, 0.0)]
    series = make_convergence(0.2, records)
    drawn = page_charts.convergence(series)
    ET.fromstring(drawn)
    assert drawn.count("cross") == 1
    assert "1: accepted; 2: rolled back; 3: no step was predicted to gain enough" in drawn
    steps = page_charts.step_lengths(series)
    bars = ET.fromstring(steps).findall("rect")
    assert [bar.get("class") for bar in bars] == ["mark c1", "mark c2 hollow", "mark c2 hollow"]
    assert "length of the step" in steps


def test_a_step_has_a_length_in_both_algorithms():
    one = record(False, 0.1, 0.5)
    other = record(False, 0.1, 0.5, "alpha_max")
    assert step_length(one) == step_length(other) == 0.5
    assert make_convergence(0.2, [one]).length_label == "length of the step"
    assert make_convergence(0.2, [other]).length_label == "amplitude"
    assert make_convergence(0.2, [one]).rolled_back == [(1, pytest.approx(11))]
    assert iteration_outcome(record(False, 0.1, 0.0)).startswith("no step")


def test_unconverged_spikes_are_hollow():
    drawn = page_charts.spectrum(make_spikes([20.0, 5.0, 1.0], [1e-5, 0.02, 0.5], 0.01))
    ET.fromstring(drawn)
    assert drawn.count("circle") == 3
    assert drawn.count('class="mark c2 hollow"') == 2
    below = page_charts.spectrum(make_spikes([20.0, 5.0, -1.0], [1e-5, 0.02, 0.5], 0.01))
    assert "10⁻" not in below  # the axis does not reach down to a spike that is not positive
    assert below.count("circle") == 3
    residuals = page_charts.residual_chart(make_spikes([3.0, 2.0, 1.0], [1e-5, 0.02, 0.0], 0.01), 0.01)
    ET.fromstring(residuals)
    assert "1 of 3 above the tolerance" in residuals


def test_spikes_are_drawn_above_zero():
    for spike in make_spikes([2.0, 2.0, 0.0], [0.5, 3.0, 0.0], 0.01):
        low, value, high = spike.drawn_range
        assert 0 < low <= value <= high
        assert spike.drawn_residual > 0
    assert make_spikes([2.0], [0.5], 0.01)[0].drawn_range == (1.0, 2.0, 3.0)


def test_a_heat_map_has_every_cell_that_is_not_zero_and_stays_small():
    matrix = np.random.default_rng(0).standard_normal((200, 100)).tolist()
    drawn = heat_map(matrix, [f"row {i}" for i in range(200)], [f"class {j}" for j in range(100)])
    paths = ET.fromstring(drawn).find("g").findall("path")
    assert len(paths) <= 2 * page_charts.SHADES
    cells = sum(path.get("d").count("M") for path in paths)
    assert 19_000 < cells <= 20_000
    assert len(drawn) < 800_000
    small = heat_map([[0.0, 2.0], [-1.0, 0.01]], ["a", "b"], ["<c>", "d"])
    texts = [t.text for t in ET.fromstring(small).iter("text")]
    assert {"+2.0", "−1.0", "<c>"} <= set(texts)
    assert "+0.0" not in texts


def test_all_zero_matrices_and_single_rows_can_be_drawn():
    ET.fromstring(heat_map([[0.0, 0.0]], ["a"], ["b", "c"]))
    ET.fromstring(page_charts.spectrum(make_spikes([3.0], [0.0], 0.01)))
    series = make_convergence(0.2, [record(False, 0.2, 0.0)])
    ET.fromstring(page_charts.convergence(series))
    ET.fromstring(page_charts.step_lengths(series))


def test_a_front_shows_methods_that_change_something_and_ran():
    rows = [
        {"name": n, "splits": s, "delta_accuracy": d, "sigma": 0.1, "sigma_se": 0.01, "worst": 0.5}
        for n, s, d in (("nothing", 2, 0), ("class-bias", 2, 0.01), ("operate", 2, 0.0), ("operate", 2, 0.01))
    ]
    rows.append({"name": "loop", "splits": 0, "delta_accuracy": None, "sigma": None, "sigma_se": None})
    drawn = ET.fromstring(page_charts.front(rows, {"sigma": 0.2}, "sigma"))
    assert len(drawn.findall("polyline")) == 2
    assert len(drawn.findall("line[@class='error c2']")) == 2
    assert front_names(rows) == ["class-bias", "operate"]
    assert front_lines(rows, "sigma")[1].points == [(1, 10), (0, 10)]
    assert front_lines(rows, "worst")[1].errors == []
    legend = page_charts.front_legend(rows)
    assert "the model as it is" in legend
    assert legend.count("<li>") == 3


def test_classes_are_ordered_by_accuracy():
    assert weakest_first([0.5, 0.2, 0.9]) == [1, 0, 2]


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
    row = ET.fromstring(page_charts.interval_row(0.5, (0.7, 0.75, 1.0), (0.4, 0.5, 0.6), "up"))
    assert [line.get("x1") for line in row.findall("line")] == ["0.0%", "40.0%"]
    assert row.findall("circle")[1].get("cx") == "50.0%"
    bar = page_charts.flow_bar(5, 10, "down")
    assert 'x="60.0%" width="40.0%"' in bar
