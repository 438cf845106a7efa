"""The rules of items about eigenvalues, on numbers made by hand."""

import copy

import pytest

from hessian_surgery.reproduce.items import eigenvalues, stability
from hessian_surgery.reproduce.items import spectrum as spectrum_item


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


def density(**changes):
    bulk = {"median": 0.01, "quantiles": [0.05, 0.1, 2.0], "trace": 300.0, "negative_share": 0.2, "resolution": 0.003}
    content = {"eigenvalues": [300.0, 20.0, 5.0], "bulk": bulk | changes, "lowest": -0.5}
    return content | {"seconds": {"density": 31.0}, "classes": 3, "density": None}


@pytest.mark.parametrize(
    ("change", "label"),
    [
        ({"quantiles": [1, 2, 3.1]}, "|λ| that 99.9 %"),
        ({"resolution": 0.28}, "the kernel's σ"),
        ({"trace": 700.0}, "the trace that 2 spikes hold"),
    ],
)
def test_what_figure_1_shows_can_be_refuted(change, label):
    assert verdicts(spectrum_item.rows({"cifar10": [density()]}), label) == ["reproduced"]
    assert verdicts(spectrum_item.rows({"cifar10": [density(), density(**change)]}), label) == ["not reproduced"]


def agreed(cosines, angles):
    names = ("matched_mean", "matched_min", "diagonal_mean")
    found = [{"subspace": k, "largest": pair[0], "mean": pair[1]} for k, pair in zip((3, 6, 9), angles, strict=True)]
    return dict(zip(names, cosines, strict=True)) | {"angles": found}


def batch_sizes():
    """What the study would have given the authors of the paper."""
    sizes = []
    for place, samples in enumerate((64, 128, 256, 512)):
        values = list(stability.EIGENVALUES[place])
        against = None if place == 3 else agreed(stability.COSINES[place], stability.ANGLES[place])
        product, lanczos = stability.SECONDS[place]
        run = {"eigenvalues": values, "converged": 9, "seconds": lanczos, "against_largest": against}
        near = agreed((1, 1, 1), ((0, 0), (0, 0), (8, 4)))
        both = {"fixed": run, "converged": copy.deepcopy(run), "fixed_against_converged": near}
        sizes.append({"samples": samples, "product_seconds": product} | both)
    return {"sizes": sizes}


def test_the_papers_own_stability_agrees_with_all_but_one_of_its_sentences():
    rows = stability.rows({"cifar10": [batch_sizes(), batch_sizes()]})
    assert all(row.paper is None or row.mean == pytest.approx(row.paper) for row in rows)
    assert sum(row.paper is not None for row in rows if row.verdict == "not comparable") == 36 + 9 + 18 + 8
    refuted = [row.label for row in rows if row.verdict == "not reproduced"]
    assert refuted == ["angle of 9 spikes less that of 3, mean over n"]
    assert sum(row.verdict == "reproduced" for row in rows) == 7


def halve_spikes(sizes):
    sizes[1]["fixed"]["eigenvalues"][8] = 2.0


@pytest.mark.parametrize(
    ("change", "label"),
    [
        (halve_spikes, "λ₉ over λ₁"),
        (halve_spikes, "of nine, Ritz values"),
        (
            lambda sizes: sizes[1]["fixed_against_converged"]["angles"][2].update(mean=40.0),
            "mean angle of 9 spikes, 10 steps to",
        ),
        (
            lambda sizes: sizes[1]["fixed"]["against_largest"]["angles"][2].update(mean=70.0),
            "mean angle of 9 spikes, n = 128",
        ),
        (lambda sizes: sizes[1]["fixed"]["against_largest"]["angles"][2].update(mean=70.0), "fall of the mean angle"),
        (lambda sizes: sizes[0]["fixed"]["against_largest"].update(diagonal_mean=0.6), "matched less diagonal"),
    ],
)
def test_what_the_paper_says_of_stability_can_be_refuted(change, label):
    other = batch_sizes()
    change(other["sizes"])
    assert verdicts(stability.rows({"cifar10": [batch_sizes(), other]}), label) == ["not reproduced"]
