"""Arithmetic and rules of the items about controls, phases, deciles and all data sets."""

import numpy as np
import pytest
from made_runs import found, metrics, record, run

from hessian_surgery.reproduce.items import adam_control, all_99, box, cifar100_classes, cifar100_phases, summary


def phased(sigmas, leading=(442.0, 83.9, 24.1), overlap=1e-6, accuracy=(0.603, 0.602, 0.609, 0.608)):
    """A run of one iteration for each phase that ends with these σ on calibration images."""
    records = []
    for i, sigma in enumerate(sigmas[1:]):
        deflation = {"vectors": 15.0 * i, "overlap": overlap} if i else None
        records.append(
            record((0.6, 0.7, 0.9), (0.6, 0.7, 0.9))
            | {"phase": i + 1, "eigenvalues": [leading[i % 3]] * 15, "deflation": deflation}
            | {"sigma": sigma, "accuracy": accuracy[(i + 1) % 4], "alpha_max": 0.029}
        )
    own = run([(0.6, 0.7, 0.9)] * 2)
    start = own["calibration_before"] | {"sigma": sigmas[0], "accuracy": accuracy[0]}
    return own | {"iterations": records, "calibration_before": start}


PAPERS = (0.1691, 0.1640, 0.1649, 0.1586)


def test_table_10_again_from_its_own_numbers():
    runs = [phased([own + 0.0001 * i * j for j, own in enumerate(PAPERS)]) for i in range(3)]
    rows = cifar100_phases.rows({"cifar100": runs})
    for number, (leading, sigma, change) in enumerate(
        ((442.0, 16.40, -0.51), (83.9, 16.49, -0.42), (24.1, 15.86, -1.05)), 1
    ):
        assert found(rows, f"phase {number} (spikes {15 * number - 14}–{15 * number}): λ_max").ours[0] == leading
        assert found(rows, f"phase {number} (spikes {15 * number - 14}–{15 * number}): σ").ours[0] == pytest.approx(
            sigma
        )
        row = found(rows, f"phase {number} (spikes {15 * number - 14}–{15 * number}): Δσ")
        assert row.ours[0] == pytest.approx(change, abs=0.001)
        assert row.verdict == "reproduced"
    for start in ("phase with the lowest", "λ_max of the last", "phase 1: change", "phases 2–3", "largest overlap"):
        assert found(rows, start).verdict == "reproduced", start


def test_phases_that_do_not_do_what_the_paper_says():
    runs = [phased((0.16, 0.15, 0.155, 0.17), leading=(60.0, 30.0, 40.0), overlap=4e-4, accuracy=(0.6, 0.62, 0.6, 0.6))]
    rows = cifar100_phases.rows({"cifar100": runs * 2})
    for start in ("phase with the lowest", "λ_max of the last", "phase 1: change", "phases 2–3", "largest overlap"):
        assert found(rows, start).verdict == "not reproduced", start


def test_more_phases_gain_less_and_less():
    less = phased((0.17, 0.165, 0.162, 0.16, 0.1595, 0.159, 0.1585, 0.158))
    more = phased((0.17, 0.169, 0.168, 0.167, 0.16, 0.155, 0.15, 0.145))
    rows = all_99.rows({"cifar100": [{"three": less, "seven": less}]})
    assert found(rows, "fall of σ").verdict == "reproduced"
    assert found(rows, "spikes treated").ours == (105,)
    assert found(rows, "all spikes").verdict == "reproduced"
    rows = all_99.rows({"cifar100": [{"three": less, "seven": more | {"iterations": more["iterations"][:5]}}]})
    assert found(rows, "fall of σ").verdict == "not reproduced"
    assert found(rows, "spikes treated").verdict == "not reproduced"


def test_deciles_formed_on_other_images_do_not_hold_the_luck():
    """Twenty equal classes, half right before and after: luck alone seems to lift the weak."""
    rng = np.random.default_rng(0)
    images = 50
    before = rng.random((20, images)) < 0.5
    after = rng.random((20, images)) < 0.5
    pairs = [
        [(b & a).sum(), (b & ~a).sum(), (~b & a).sum(), (~b & ~a).sum()] for b, a in zip(before, after, strict=True)
    ]
    own = {
        "classes": [str(j) for j in range(20)],
        "before": metrics(before.mean(axis=1)),
        "after": metrics(after.mean(axis=1)),
        "calibration_before": metrics((rng.random((20, images)) < 0.5).mean(axis=1)),
        "pairs": np.array(pairs).tolist(),
    }
    rows = cifar100_classes.rows({"cifar100": [own]})
    assert found(rows, "decile 1: change").ours[0] > 10  # the paper's way
    assert found(rows, "decile 1, formed on other images: change").verdict == "not reproduced"
    assert found(rows, "decile 1, accuracy before: the paper's way").ours[0] < -5
    assert found(rows, "decile 1, change: the paper's way").ours[0] > 5
    assert found(rows, "r of accuracy").verdict == "not reproduced"


def test_a_transfer_from_strong_to_weak_classes_is_seen():
    level = np.linspace(0.3, 0.9, 20)
    pairs = [
        [round(100 * a) - 6, 6, 6 + round(30 * (0.6 - a)), 94 - round(100 * a) - round(30 * (0.6 - a))] for a in level
    ]
    own = {
        "classes": [*(str(j) for j in range(19)), "willow_tree"],
        "before": metrics(level),
        "after": metrics(level + 0.3 * (0.6 - level)),
        "calibration_before": metrics(level),
        "pairs": pairs,
    }
    pairs[-1] = [80, 14, 4, 2]
    rows = cifar100_classes.rows({"cifar100": [own] * 2})
    assert found(rows, "r of accuracy").verdict == "reproduced"
    assert found(rows, "decile 1, formed on other images: change").verdict == "reproduced"
    assert found(rows, "decile 10, formed on other images: change").verdict == "reproduced"
    assert found(rows, "willow_tree").ours == pytest.approx((-10.0, -10.0))


@pytest.mark.parametrize(("values", "rise"), [((2.0, 1.0, 0.5, 1.5), 50.0), ((2.0, 1.0, 0.5), 0.0), ((2.0, 2.0), 0.0)])
def test_how_far_an_amplitude_recovers(values, rise):
    assert adam_control.largest_rise(values) == pytest.approx(rise)


def test_the_limit_of_adam_control_is_no_decay():
    """At once to the floor of a twentieth, and then no further."""
    assert adam_control.limiting_factors() == pytest.approx([0.05, 1.0, 1.0], abs=1e-3)


def controls(alphas, after=(0.7, 0.8, 0.85)):
    states = [(0.6, 0.7, 0.9)] * (len(alphas) + 1)
    return {"Adam": run(states, alphas=alphas), "γ-decay": run(states, after=after)}


def test_recovery_and_a_slight_difference():
    rows = adam_control.rows({"cifar10": [controls([0.02, 0.001, 0.015])] * 2})
    assert found(rows, "Adam: largest rise").verdict == "reproduced"
    assert found(rows, "σ: Adam minus").verdict == "reproduced"
    assert found(rows, "factors of α_max").verdict == "not reproduced"
    rows = adam_control.rows({"cifar10": [controls([0.02, 0.001, 0.0012], after=(0.6, 0.7, 0.99))] * 2})
    assert found(rows, "Adam: largest rise").verdict == "not reproduced"
    assert found(rows, "σ: Adam minus").verdict == "not reproduced"
    rows = adam_control.rows({"cifar10": [controls([0.02, 0.02])] * 2})
    assert found(rows, "Adam: largest rise").verdict == "not comparable"


def small(before, after, calibration_after, accuracy=0.0):
    """A run with these σ, as fractions; it starts at the same σ on both sets of images."""
    own = phased(PAPERS) | {"untrained_sigma": before}
    own["before"] = own["before"] | {"sigma": before}
    own["after"] = own["after"] | {"sigma": after}
    own["calibration_before"] = own["calibration_before"] | {"sigma": before}
    own["calibration_after"] = own["calibration_after"] | {"sigma": calibration_after}
    own["changes"] = own["changes"] | {"accuracy": {"difference": accuracy, "interval": [accuracy - 0.01, accuracy]}}
    return own


def test_the_summary_compares_data_sets_and_sets_of_images():
    few = [small(0.08, 0.05 + 0.0001 * i, 0.048) for i in range(3)]
    many = [small(0.16, 0.158 + 0.0001 * i, 0.13) for i in range(3)]
    rows = summary.rows({"cifar10": few, "cifar100": many, "skin": few})
    for start in ("relative change of σ: CIFAR-100", "CIFAR-100: held-out minus", "held-out minus calibration"):
        assert found(rows, start).verdict == "reproduced", start
    assert found(rows, "CIFAR-10: relative change of σ").ours[0] == pytest.approx(-37.5)
    assert found(rows, "CIFAR-10: spikes used").ours[0] == 45
    many = [small(0.16, 0.08 + 0.0001 * i, 0.09, accuracy=-0.02) for i in range(3)]
    rows = summary.rows({"cifar10": few, "cifar100": many, "skin": few})
    for start in ("relative change of σ: CIFAR-100", "CIFAR-100: held-out minus", "held-out minus calibration"):
        assert found(rows, start).verdict == "not reproduced", start
    assert found(rows, "CIFAR-100: Δ accuracy").verdict == "not reproduced"
    assert found(rows, "CIFAR-10: Δ accuracy").verdict == "reproduced"


def bounded(after, eigenvalues=(40.0, 10.0, 1.0), coefficients=(0.1, 0.1, 0.1)):
    own = run([(0.6, 0.7, 0.9)] * 2, after=after)
    own["iterations"][0] |= {"eigenvalues": list(eigenvalues), "coefficients": list(coefficients)}
    return own


def test_a_box_beside_a_ball():
    better = [
        {"box": bounded((0.7 + 0.01 * i, 0.8, 0.85)), "ball": bounded((0.6, 0.7, 0.9), coefficients=(0, 0.1, 0.1))}
        for i in range(3)
    ]
    rows = box.rows({"skin": better})
    assert found(rows, "σ after: box").verdict == "reproduced"
    assert found(rows, "share of high-curvature").verdict == "reproduced"
    assert found(rows, "λ of the first spike over").verdict == "reproduced"
    assert found(rows, "narrowest").ours[0] == pytest.approx((1 / 40) ** 0.5)
    assert found(rows, "widest").verdict == "not reproduced"  # the last spike's is α_max itself
    assert found(rows, "length of the box").ours[0] == pytest.approx((1 + 0.1 + 0.025) ** 0.5)
    worse = [{"box": own["ball"], "ball": own["box"]} for own in better]
    for own in worse:
        own["box"]["iterations"][0] |= {"eigenvalues": [2.0, 1.5, 1.0]}
    rows = box.rows({"skin": worse})
    for start in ("σ after: box", "share of high-curvature", "λ of the first spike over"):
        assert found(rows, start).verdict == "not reproduced", start


def test_the_share_of_the_steep_spikes():
    record = {"eigenvalues": [9.0, 5.0, 1.0], "coefficients": [1.0, 2.0, 2.0]}
    assert box.steep_share(record) == pytest.approx(100 / 9)
    assert box.steep_share(record | {"coefficients": [0.0] * 3}) == 0.0
