"""The rules of items about the rank of S and its linear model, on numbers made by hand."""

import copy
from types import SimpleNamespace

import pytest

from hessian_surgery.paper.presets import paper_config
from hessian_surgery.reproduce.items import effective_rank, linearization
from hessian_surgery.reproduce.items.effective_rank import BALANCED, CIFAR, PLAIN


def start(singular, rank, interval, energy, classes=("cat", "dog", "frog"), costs=(0.05, 0.01)):
    return {
        "classes": list(classes),
        "sensitivity": [[1.0, -1.0, 0.0], [-2.0, 3.0, 0.0], [0.0, 1.0, 0.0]],
        "structure": {"singular_values": list(singular), "flatness": singular[0] / singular[1], "frobenius": 9.0},
        "leading_energy": energy,
        "effective_rank": {"estimate": rank, "interval": interval},
        "cost": {"of_iteration": costs[0], "of_run": costs[1], "iterations": 10},
    }


def ranks():
    lesions = ("MEL", "NV", "DF")
    return {
        "cifar10": [{CIFAR: start((6.41, 5.22, 3.99), 3.98, [3.4, 4.9], 0.718)}],
        "skin": [
            {
                PLAIN: start((10, 8, 3), 3.5, [3, 4], 0.8, lesions),
                BALANCED: start((17.4, 9.4, 3.8), 2.11, [1.8, 2.5], 0.89, lesions),
                "contraction": {"change": -1.4, "interval": [-2.0, -0.8]},
            }
        ],
    }


def judged(rows):
    return {row.label: row.verdict for row in rows if row.verdict != "not comparable"}


def test_table_14_agrees_with_itself():
    rows = effective_rank.rows(ranks())
    assert set(judged(rows).values()) == {"reproduced"}
    assert len(judged(rows)) == 2 + 1 + 4 + 4 + 3
    assert {row.paper for row in rows if row.paper is not None} >= {6.41, 5.22, 3.99, 1.23, 3.98, 9.76, 71.8}
    assert {row.paper for row in rows if row.paper is not None} >= {17.4, 9.4, 3.8, 1.86, 2.11, 20.4, 89.0}


@pytest.mark.parametrize(
    ("dataset", "name", "change", "label"),
    [
        ("cifar10", CIFAR, {"effective_rank": {"estimate": 5.0, "interval": [4.5, 5.5]}}, f"{CIFAR}: effective rank"),
        ("skin", BALANCED, {"effective_rank": {"estimate": 4.0, "interval": [3, 5]}}, f"{BALANCED}: effective rank"),
        ("skin", "contraction", {"change": -0.1, "interval": [-1.0, 0.8]}, "effective rank, skin: class-balanced"),
        ("skin", BALANCED, {"structure": start((5, 5, 3), 1, [1, 1], 0)["structure"]}, f"σ₁/σ₂: {BALANCED} less"),
        ("skin", BALANCED, {"leading_energy": 0.7}, f"energy in two: {BALANCED} less"),
        (
            "skin",
            PLAIN,
            {"cost": {"of_iteration": 0.97, "of_run": 0.09, "iterations": 9}},
            f"{PLAIN}: cost of the effective rank, of one",
        ),
        (
            "skin",
            PLAIN,
            {"cost": {"of_iteration": 0.97, "of_run": 0.19, "iterations": 5}},
            f"{PLAIN}: cost of the effective rank, of the",
        ),
        (
            "skin",
            PLAIN,
            {"sensitivity": [[1.0, -1.0, 0.0], [2.0, 3.0, 0.0]]},
            f"{PLAIN}: of spikes that move both MEL and NV",
        ),
        ("cifar10", CIFAR, {"sensitivity": [[1.0, 0.0, 0.0]]}, f"{CIFAR}: of spikes that move both cat and dog"),
    ],
)
def test_what_is_said_of_the_effective_rank_can_be_refuted(dataset, name, change, label):
    found = ranks()
    found[dataset][0][name] |= change
    (verdict,) = [verdict for row, verdict in judged(effective_rank.rows(found)).items() if row.startswith(label)]
    assert verdict == "not reproduced"


def test_energy_beyond_the_effective_rank_is_seen():
    """Of energies 8, 1, 1, an effective rank of 1.9 keeps 90 %."""
    found = {"structure": {"singular_values": [8**0.5, 1.0, 1.0]}, "effective_rank": {"estimate": 1.9}}
    assert effective_rank.leading(found) == pytest.approx(90)


def test_the_rank_costs_nearly_an_iteration():
    """Ten products of 256 images, and 14 passes over 1,000; an iteration adds one pass."""
    found = SimpleNamespace(images=1000, eigenvalues=[1.0] * 7)
    cost = effective_rank.cost(found, paper_config("isic"))
    rank = 6 * 10 * 256 + 14 * 1000
    assert cost["of_iteration"] == pytest.approx(rank / (rank + 1000))
    assert cost["of_run"] == pytest.approx(rank / (10 * (rank + 1000) + 1000))


def test_contraction_is_mirrored_at_the_estimate():
    """Resampled ranks that lie 0.5 too high on both sides say nothing about the difference."""
    plain = SimpleNamespace(effective_rank=SimpleNamespace(estimate=4.0), resampled_ranks=[4.4, 4.5, 4.6])
    balanced = SimpleNamespace(effective_rank=SimpleNamespace(estimate=2.0), resampled_ranks=[2.6, 2.5, 2.4])
    found = effective_rank.contraction(plain, balanced)
    assert found["change"] == -2.0
    assert found["interval"] == pytest.approx([-2.19, -1.81])


def curve(intercept, slope, exponent, r_squared):
    return {"intercept": intercept, "slope": slope, "exponent": exponent, "r_squared": r_squared}


def sweep(**changes):
    """What the paper's sweep would look like if its fits were exact."""
    norms = [5e-4, 0.02, 0.055]
    fits = {name: curve(c, b, d, r or 1.0) for name, (c, b, d, r) in linearization.PAPER.items()}
    return {
        "fits": fits | changes.pop("fits", {}),
        "damping": 0.63 / 1.11,
        "norm": norms,
        "predicted_norm": [1.11 * norm for norm in norms],
        "measured_norm": [1.5e-3 + 0.63 * norm for norm in norms],
        "error_norm": [linearization.papers_error(norm) for norm in norms],
    } | changes


def test_the_papers_own_fits_contradict_two_of_its_sentences():
    rows = linearization.rows({"cifar10": [sweep(), sweep()]})
    assert all(row.paper is None or row.mean == pytest.approx(row.paper, rel=0.01) for row in rows)
    refuted = [label for label, verdict in judged(rows).items() if verdict == "not reproduced"]
    assert [label.split(",")[0] for label in refuted] == [
        "largest error over the fitted floor c",
        "error over predicted change",
    ]
    assert len(judged(rows)) == 7


@pytest.mark.parametrize(
    ("change", "label"),
    [
        ({"fits": {"measured": curve(1e-3, 0.6, 1, 0.9)}}, "measured norm: R²"),
        ({"fits": {"measured": curve(-1e-3, 0.6, 1, 0.99)}}, "measured norm: intercept"),
        ({"damping": 1.0}, "damping"),
        ({"fits": {"error": curve(2e-3, 10.0, 1.72, 0.99)}}, "error: exponent"),
        ({"fits": {"error": None}}, "error: exponent"),
        ({"fits": {"error": curve(2e-3, 0.9, 1.1, 0.9)}}, "error: R²"),
    ],
)
def test_what_is_said_of_linearity_can_be_refuted(change, label):
    found = [sweep(**copy.deepcopy(change)), sweep(**copy.deepcopy(change))]
    (verdict,) = [v for row, v in judged(linearization.rows({"cifar10": found})).items() if row.startswith(label)]
    assert verdict == "not reproduced"


def test_small_errors_satisfy_the_caption_and_the_budget():
    found = sweep(error_norm=[2e-3, 4e-3, 5e-3])
    verdicts = judged(linearization.rows({"cifar10": [found]}))
    assert set(verdicts.values()) == {"reproduced"}
