import numpy as np
import pytest
from runs import HOSTILE

from hessian_surgery.report import figure_files
from hessian_surgery.report.figure_data import Responses, make_convergence, make_spikes


def check(figure, folder, name):
    figure_files.save_figures(folder, {name: figure})
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / f"{name}.svg").read_text().startswith("<?xml")
    for axes in figure.axes:
        assert axes.get_ylabel()


@pytest.mark.filterwarnings("error")
def test_hostile_names_can_be_drawn(tmp_path):
    rates = np.linspace(0.2, 1, 10)
    series = {"before": (rates, [(r - 0.1, r) for r in rates]), "after": (rates, [(r - 0.1, r) for r in rates])}
    figure = figure_files.draw_classes(HOSTILE, series)
    check(figure, tmp_path, "classes")
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[7] == r"\$x^2\$ and \$"
    assert max(map(len, labels)) <= 30
    responses = Responses(HOSTILE, HOSTILE, np.eye(10).tolist(), "coefficient")
    check(figure_files.draw_responses(responses), tmp_path, "responses")


def test_iterations_and_spectrum(tmp_path):
    records = [{"accepted": i != 2, "sigma": 0.1, "candidate_sigma": 0.2, "alpha_max": 0.1} for i in (1, 2)]
    figure = figure_files.draw_iterations(make_convergence(0.2, records))
    assert [line.get_label() for line in figure.axes[0].lines] == ["kept", "rolled back"]
    assert figure.axes[1].get_ylabel() == "amplitude"
    check(figure, tmp_path, "iterations")
    figure = figure_files.draw_spectrum(make_spikes([3.0, 1.0], [0.0, 0.1], 0.01), 0.01)
    assert [line.get_markerfacecolor() for line in figure.axes[1].lines[:2]] == ["#0072B2", "white"]
    check(figure, tmp_path, "spectrum")
    figure = figure_files.draw_spectrum(make_spikes([3.0, 1.0, -0.5], [0.0, 0.1, 0.2], 0.01), 0.01)
    assert figure.axes[0].get_ylim()[0] == 0.5


def test_many_classes_stay_readable(tmp_path):
    names = [f"class {i}" for i in range(100)]
    figure = figure_files.draw_responses(Responses(names * 2, names, np.zeros((200, 100)).tolist(), "length"))
    assert len(figure.axes[0].get_xticks()) <= 40
    check(figure, tmp_path, "responses")
