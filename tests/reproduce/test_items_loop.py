"""Arithmetic and rules of the items about runs of the loop, on runs made by hand."""

import numpy as np
import pytest
from made_runs import found, record, run

from hessian_surgery.reproduce.items import iterations, main, omega, p_rule
from hessian_surgery.reproduce.loop_rows import class_changes, mean_over_splits, watched


def test_main_judges_the_changes_by_their_intervals():
    good = main.rows({"cifar10": [run([(0.6, 0.7, 0.9)] * 2)]})
    assert found(good, "Δσ").verdict == "reproduced"
    assert found(good, "cat: change").ours == pytest.approx((10.0,))
    assert found(good, "cat: change").verdict == "reproduced"
    assert found(good, "the two largest gains").verdict == "reproduced"
    assert found(good, "accuracy: change").verdict == "not reproduced"  # −5 to −1 pp
    bad = main.rows({"cifar10": [run([(0.6, 0.7, 0.9)] * 2, after=(0.6, 0.69, 0.95), change=(0, (-0.005, 0.005)))]})
    assert found(bad, "Δσ").verdict == "not reproduced"
    assert found(bad, "cat: change").verdict == "not reproduced"
    assert found(bad, "the two largest gains").verdict == "not reproduced"
    assert found(bad, "accuracy: change").verdict == "reproduced"


def test_a_class_that_the_paper_names_is_watched_and_otherwise_the_weakest():
    runs = [run([(0.9, 0.7, 0.6)] * 2)]
    assert watched(runs, ("cat", "dog")) == ["cat", "dog"]
    assert watched(runs, ("vasc", "df")) == ["ship", "dog"]
    assert class_changes(runs, "ship")[0] == pytest.approx([-5.0])


def test_the_interval_over_splits_is_students():
    assert mean_over_splits([1.0]) is None
    assert mean_over_splits([1.0, 2.0, 3.0]) == pytest.approx((2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), rel=1e-4)


def test_table_5_again_from_its_own_accuracies():
    """The average and α_max follow from σ alone, as the paper's table has them."""
    sigmas = [0.01 * value for value in iterations.PAPER["sigma"]]
    base = run([(0.6, 0.7, 0.9)] * 2)
    records = []
    for t, value in enumerate([*sigmas[1:], 0.2, 0.2]):
        accepted = t < 8
        kept = value if accepted else sigmas[-1]
        records.append(
            {
                "accepted": accepted,
                "alpha_max": iterations.PAPER["alpha_max"][t],
                "candidate_sigma": value,
                "max_drop": 0.0,
                "sigma": kept,
                "accuracy": 0.8,
                "per_class": [0.01 * iterations.PAPER[side][min(t + 1, 8)] for side in ("first", "second")] + [0.9],
            }
        )
    start = base["calibration_before"] | {"sigma": sigmas[0], "per_class": [0.638, 0.708, 0.9]}
    own = base | {"calibration_before": start, "iterations": records}
    columns = iterations.trace(own, ["cat", "dog"]).columns
    assert columns["average"][:9] == pytest.approx(iterations.PAPER["average"], abs=0.02)
    assert columns["alpha_max"] == pytest.approx(iterations.PAPER["alpha_max"], abs=1e-4)
    rows = iterations.rows({"cifar10": [own, own]})
    assert found(rows, "iterations that raise").verdict == "not reproduced"
    for start in ("share of iterations 1–2", "r of the increments", "α_max at the end", "mean size"):
        row = found(rows, start)
        assert row.verdict == "reproduced", row
        assert row.mean == pytest.approx(row.paper, abs=0.01)


def test_classes_that_move_together_and_a_fall_at_the_end_are_not_what_the_paper_saw():
    states = [(0.5, 0.5, 0.9)] * 4
    for step in (0.01, 0.03, 0.01, 0.04, 0.02):
        states.append((states[-1][0] + step, states[-1][1] + step, 0.9))
    rows = iterations.rows({"cifar10": [run(states)]})
    assert found(rows, "iterations that raise").verdict == "reproduced"
    assert found(rows, "share of iterations 1–2").verdict == "not reproduced"
    assert found(rows, "r of the increments").verdict == "not reproduced"
    assert found(rows, "mean size").verdict == "not comparable"


@pytest.mark.parametrize(("values", "share"), [((9.0, 8.0, 7.0, 5.0), 50.0), ((5.0, 6.0), 0.0), ((5.0, 4.0), 100.0)])
def test_the_share_of_the_first_two_iterations(values, share):
    assert iterations.early_share(values) == pytest.approx(share)


def test_an_interval_of_a_correlation_needs_four_pairs():
    assert iterations.fisher_interval(0.5, 3) is None
    low, high = iterations.fisher_interval(0.0, 28)
    assert (low, high) == pytest.approx((-np.tanh(1.96 / 5), np.tanh(1.96 / 5)), abs=1e-4)


def with_exponents(best, splits=3, start=(0.6, 0.7, 0.9)):
    """Runs with each p: the best one ends with the lowest σ and the best worst class."""
    found = []
    for split in range(splits):
        runs = {}
        for p in ("0", "0.5", "1", "2"):
            gain = 0.1 + 0.01 * split if p == best else 0.05
            after = (start[0] + gain, start[1], start[2])
            runs[p] = run([start, after], before=start, after=after)
        found.append(runs)
    return found


def test_the_rule_is_tested_on_all_splits():
    """At ratio 4, table 3 has p = 2 for σ and 1 for the worst class; at 8, ½ and 0."""
    severe = (0.2, 0.7, 0.9)
    right = p_rule.rows({"cifar10": with_exponents("2"), "skin": with_exponents("0.5", start=severe)})
    assert found(right, "CIFAR-10: e_max").verdict == found(right, "skin: e_max").verdict == "reproduced"
    for start, p in (("CIFAR-10, lowest σ", 2.0), ("skin, lowest σ", 0.5)):
        row = found(right, f"{start}: best p")
        assert (row.verdict, row.paper, row.mean) == ("reproduced", p, p)
    assert found(right, "CIFAR-10, best worst class: best p").verdict == "not reproduced"
    assert found(right, "CIFAR-10, best worst class: best p").paper == 1.0
    assert found(right, "skin, best worst class: best p").paper == 0.0
    wrong = p_rule.rows({"cifar10": with_exponents("1"), "skin": with_exponents("0", start=(0.6, 0.7, 0.9))})
    assert found(wrong, "CIFAR-10, lowest σ: best p").verdict == "not reproduced"
    assert found(wrong, "CIFAR-10, lowest σ: p = 2 minus p = 1").verdict == "not reproduced"
    assert found(wrong, "CIFAR-10, best worst class: best p").verdict == "reproduced"
    assert found(wrong, "skin: e_max").verdict == "not reproduced"


def test_one_split_cannot_say_which_exponent_wins():
    rows = p_rule.rows({"cifar10": with_exponents("2", splits=1), "skin": with_exponents("0.5", splits=1)})
    assert found(rows, "CIFAR-10, lowest σ: best p").verdict == "not reproduced"


def test_uniform_weights_are_said_to_give_accuracy_and_not_sigma():
    runs = with_exponents("2")
    for own in runs:
        own["0"] = run([(0.6, 0.7, 0.9)] * 2, after=(0.62, 0.72, 0.99))
    rows = p_rule.rows({"cifar10": runs, "skin": runs})
    assert found(rows, "CIFAR-10, p = 0").verdict == "reproduced"
    rows = p_rule.rows({"cifar10": with_exponents("2"), "skin": runs})
    assert found(rows, "CIFAR-10, p = 0").verdict == "not reproduced"


TRAINING = {"training": {"balanced_accuracy": 0.99}}


def three(runs):
    return [{p: own[p] for p in ("0.5", "1", "2")} | TRAINING for own in runs]


def test_which_exponent_wins_in_table_8():
    claims = {"2": "CIFAR-10, square wins", "0.5": "skin, square root wins"}
    right = omega.rows({"cifar10": three(with_exponents("2")), "skin": three(with_exponents("0.5"))})
    wrong = omega.rows({"cifar10": three(with_exponents("0.5")), "skin": three(with_exponents("1"))})
    for claim in claims.values():
        assert found(right, claim).verdict == "reproduced"
        assert found(wrong, claim).verdict == "not reproduced"
    assert found(right, "skin, best balanced").verdict == "reproduced"
    assert found(wrong, "skin, best balanced").verdict == "not reproduced"
    assert found(right, "skin, p = ½: iterations that raise").verdict == "reproduced"
    assert found(right, "skin, worst balanced").verdict == "not reproduced"  # as bad as p = 2


def test_what_a_square_root_does_to_the_run():
    quiet = [(0.5, 0.5, 0.9), (0.5, 0.5, 0.9), (0.5, 0.5, 0.9), (0.51, 0.51, 0.9), (0.53, 0.53, 0.9), (0.54, 0.54, 0.9)]
    opposed = [*quiet[:3], (0.52, 0.49, 0.9), (0.5, 0.52, 0.9), (0.53, 0.5, 0.95)]
    splits = []
    for split in range(3):
        runs = {"0.5": run(opposed), "1": run(quiet), "2": run(quiet)}
        runs["0.5"]["iterations"] += [record(opposed[-1], quiet[0], accepted=False)] * (2 + split)
        splits.append(runs)
    rows = omega.rows({"cifar10": splits, "skin": three(splits)})
    assert omega.pair_correlation(splits[0]["2"], ["cat", "dog"]) == pytest.approx(1.0)
    assert omega.pair_correlation(splits[0]["0.5"], ["cat", "dog"]) < -0.9
    assert found(rows, "CIFAR-10, rollbacks").verdict == "reproduced"
    assert found(rows, "CIFAR-10, r of the increments").verdict == "reproduced"
    assert found(rows, "skin, p = ½: iterations that raise").verdict == "not reproduced"
    swapped = [{"0.5": own["2"], "1": own["1"], "2": own["0.5"]} for own in splits]
    rows = omega.rows({"cifar10": swapped, "skin": three(swapped)})
    assert found(rows, "CIFAR-10, rollbacks").verdict == "not reproduced"
    assert found(rows, "CIFAR-10, r of the increments").verdict == "not reproduced"


def test_falls_of_sigma_after_the_fifth_iteration():
    states = [(0.5, 0.5, 0.9)] * 6 + [(0.6, 0.6, 0.9)]
    fall = 100 * (np.std([0.5, 0.5, 0.9]) - np.std([0.6, 0.6, 0.9]))
    assert omega.late_falls([run(states), run(states[:3])]) == pytest.approx([fall, 0.0])
