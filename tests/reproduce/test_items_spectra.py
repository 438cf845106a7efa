"""The rules of items about eigenvalues, on numbers made by hand."""

import copy

import pytest

from hessian_surgery.reproduce.items import eigenvalues


def verdicts(rows, start):
    """The verdicts of rows whose label starts so."""
    found = [row.verdict for row in rows if row.label.startswith(start)]
    assert found, [row.label for row in rows]
    return found


def spectrum(scale=1.0):
    ritz = [scale * value for value in eigenvalues.PAPER]
    return {
        "ritz": ritz,
        "residuals": [0.01] * 10,
        "converged": [*ritz[:8], scale * 3.0, scale * 0.1, scale * 0.09],
        "bulk": {"median": scale * 0.0134, "quantiles": [0.1, 0.5, 2.0]},
        "lowest": -1.1,
        "classes": 10,
        "alignment": {"classes": [0.9, 0.7], "shuffled": [0.2, 0.2], "random": [1e-7, 1e-7]},
    }


def test_the_papers_own_table_is_reproduced():
    rows = eigenvalues.rows({"cifar10": [spectrum(), spectrum(1.4)]})
    assert [row.paper for row in rows[:10]] == list(eigenvalues.PAPER)
    judged = [row for row in rows if row.verdict != "not comparable"]
    ratio = next(row for row in judged if row.label.startswith("variation"))
    assert ratio.ours == (pytest.approx(-100 * 0.4 / 2**0.5 / 1.2),)
    assert {row.label: row.verdict for row in judged if row.verdict != "reproduced"} == {}
    assert len(judged) == 11


@pytest.mark.parametrize(
    ("change", "label"),
    [
        (lambda one: one["ritz"].__setitem__(7, 13.0), "λ8 over the bulk's median"),
        (lambda one: one["bulk"].update(median=0.1), "anisotropy"),
        (lambda one: one["converged"].__setitem__(8, 0.2), "eigenvalues before the widest gap"),
        (lambda one: one["ritz"].__setitem__(8, 9.0), "λ₉ over λ₁, 10 steps"),
        (lambda one: one["converged"].__setitem__(8, 9.0), "λ₉ over λ₁, converged"),
        (lambda one: one["ritz"].__setitem__(9, 0.1), "λ₁₀ over λ₁"),
        (lambda one: one.update(lowest=-2.1), "lowest eigenvalue"),
        (lambda one: one["ritz"].__setitem__(0, 1500.0), "λ₁: largest run over smallest"),
        (lambda one: one["alignment"].update(classes=[0.05, 0.2]), "spikes in the span of class-mean"),
        (lambda one: one["alignment"].update(shuffled=[0.9, 0.9]), "the same less that of random groups"),
    ],
)
def test_one_run_that_differs_is_enough_to_refute(change, label):
    other = copy.deepcopy(spectrum())
    change(other)
    assert verdicts(eigenvalues.rows({"cifar10": [spectrum(), other]}), label) == ["not reproduced"]


def test_ratios_that_vary_more_than_the_leading_value_are_not_stable():
    other = spectrum()
    other["ritz"] = [other["ritz"][0], *(2 * value for value in other["ritz"][1:])]
    other["ritz"][0] *= 1.1
    assert verdicts(eigenvalues.rows({"cifar10": [spectrum(), other]}), "variation") == ["not reproduced"]


def test_one_run_says_nothing_about_runs():
    assert not [row for row in eigenvalues.rows({"cifar10": [spectrum()]}) if "run" in row.label]


def test_the_widest_gap_leaves_out_the_first_and_what_is_not_positive():
    assert eigenvalues.widest_gap([100, 10, 9, 8, 4, 3, -1]) == 4
    assert eigenvalues.widest_gap([5, 4, -1]) == 2
