"""Tables 15 to 18: spikes by batch size, with the paper's ten steps and converged."""

import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hessian_surgery.curvature.search import SpikeSearch
from hessian_surgery.report.figure_style import BLUE, GREY, VERMILION, new_figure, scale_eigenvalues
from hessian_surgery.reproduce.item import Item, Measured
from hessian_surgery.reproduce.row import Row, claim_row, shown_row
from hessian_surgery.reproduce.workbench import Workbench
from hessian_surgery.studies.stability import SIZES, stability

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Table 15: λ₁ … λ₉ at each n.
EIGENVALUES = (
    (897.5, 431.8, 220.9, 171.8, 121.5, 111.7, 79.5, 74.0, 55.0),
    (639.9, 357.3, 319.3, 146.3, 126.7, 112.3, 91.6, 71.1, 55.8),
    (462.6, 324.8, 248.8, 176.7, 133.1, 108.0, 93.0, 76.1, 54.0),
    (522.0, 296.0, 262.0, 175.9, 139.4, 95.7, 75.0, 58.4, 42.9),
)
# Table 16: matched mean, matched min and diagonal mean at each n but the largest.
COSINES = ((0.518, 0.206, 0.287), (0.635, 0.444, 0.533), (0.803, 0.619, 0.770))
# Table 17: largest and mean angle for k = 3, 6, 9 at each n but the largest, in degrees.
ANGLES = (
    ((59.4, 33.0), (88.1, 38.7), (76.9, 34.7)),
    ((42.6, 23.1), (34.6, 20.6), (58.9, 24.2)),
    ((35.5, 18.3), (23.7, 12.7), (44.4, 14.3)),
)
# Table 18: seconds of one product, and of a Lanczos run of ten steps.
SECONDS = ((5.5, 97.0), (6.3, 126.0), (9.3, 174.0), (12.7, 261.0))
SUBSPACES = (3, 6, 9)
STEPS = 10
# Place of n = 128, the paper's choice, in the sizes.
CHOSEN = 1
OTHER = "another network"
HALFWAY = 45.0


def measure(bench: Workbench, split: int) -> Measured:
    """The study, with the split as its seed."""
    sizes = (16, 32, 48, 64) if bench.quick else SIZES
    training = bench.source.part("train", "data")
    return stability(
        bench.model(), training, SpikeSearch(spikes=9), sizes=sizes, subspaces=SUBSPACES, steps=STEPS, seed=split
    ).as_dict()


def rows(measured: dict[str, Sequence[Measured]]) -> list[Row]:
    """Every number of the four tables, and what the paper reads off them."""
    found = [one["sizes"] for one in measured["cifar10"]]
    return [*_eigenvalue_rows(found), *_agreement_rows(found), *_seconds_rows(found), *_claims(found)]


def each(found: Sequence[Any], size: int, take: Callable[[Any], float]) -> list[float]:
    """One number of each split at one batch size."""
    return [take(sizes[size]) for sizes in found]


def _eigenvalue_rows(found: Sequence[Any]) -> list[Row]:
    return [
        shown_row(
            f"λ{rank + 1} at n = {found[0][size]['samples']}, {STEPS} steps",
            "",
            paper,
            each(found, size, lambda at, rank=rank: at["fixed"]["eigenvalues"][rank]),  # type: ignore[misc]
            OTHER,
        )
        for size, values in enumerate(EIGENVALUES)
        for rank, paper in enumerate(values)
    ]


def _agreement_rows(found: Sequence[Any]) -> list[Row]:
    shown = []
    for size, (papers, angles) in enumerate(zip(COSINES, ANGLES, strict=True)):
        at = f"at n = {found[0][size]['samples']}, {STEPS} steps"
        for name, paper in zip(("matched_mean", "matched_min", "diagonal_mean"), papers, strict=True):
            ours = [sizes[size]["fixed"]["against_largest"][name] for sizes in found]
            shown.append(shown_row(f"cosine, {name.replace('_', ' ')}, {at}", "", paper, ours, OTHER))
        for place, (k, (largest, mean)) in enumerate(zip(SUBSPACES, angles, strict=True)):
            for run, label in (("fixed", f"{STEPS} steps"), ("converged", "converged")):
                for name, paper in (("largest", largest), ("mean", mean)):
                    ours = [angle(sizes, size, place, run, name) for sizes in found]
                    label_at = f"{name} angle of {k} spikes at n = {found[0][size]['samples']}, {label}"
                    given = paper if run == "fixed" else None
                    shown.append(shown_row(label_at, "°", given, ours, OTHER))
    return shown


def angle(sizes: Any, size: int, place: int, run: str = "fixed", name: str = "mean") -> float:
    """An angle in degrees against the largest batch; `place` is that of k in `SUBSPACES`."""
    return float(sizes[size][run]["against_largest"]["angles"][place][name])


def _seconds_rows(found: Sequence[Any]) -> list[Row]:
    shown = []
    for size, (product, lanczos) in enumerate(SECONDS):
        n = found[0][size]["samples"]
        ours = each(found, size, lambda at: at["product_seconds"])
        shown.append(shown_row(f"one product at n = {n}", "s", product, ours, "other hardware"))
        ours = each(found, size, lambda at: at["fixed"]["seconds"])
        shown.append(shown_row(f"{STEPS} Lanczos steps at n = {n}", "s", lanczos, ours, "other hardware"))
    return shown


def _claims(found: Sequence[Any]) -> list[Row]:
    ninth = [min(100 * at["fixed"]["eigenvalues"][8] / at["fixed"]["eigenvalues"][0] for at in one) for one in found]
    gap = [_smallest_gap(one) for one in found]
    return [
        claim_row(
            f"λ₉ over λ₁, smallest over n, {STEPS} steps",
            "%",
            min(100 * values[8] / values[0] for values in EIGENVALUES),
            ninth,
            min(ninth) >= 1,
            "the gap between spikes and bulk is there at every n: the ninth is 1 % of λ₁ or more, on every split",
        ),
        *_recovery(found),
        claim_row(
            "matched less diagonal cosine, smallest over n",
            "",
            min(matched - diagonal for matched, _, diagonal in COSINES),
            gap,
            min(gap) > 0,
            "close eigenvalues swap places: matched cosines exceed diagonal ones at every n, on every split",
        ),
        *_turning(found),
    ]


def _turning(found: Sequence[Any]) -> list[Row]:
    """What the paper says of angles between batches."""
    compared = range(len(ANGLES))
    means = [statistics.fmean(angle(one, size, 2) for one in found) for size in compared]
    further = [[angle(one, size, 2) - angle(one, size, 0) for size in compared] for one in found]
    return [
        *(
            claim_row(
                f"mean angle of 9 spikes, n = {found[0][size]['samples']} to {found[0][-1]['samples']}, {STEPS} steps",
                "°",
                ANGLES[size][2][1],
                [angle(one, size, 2) for one in found],
                means[size] < HALFWAY,
                "n ≥ 128 preserves the subspace: nearer to the same span than to an orthogonal one, below 45°",
            )
            for size in (CHOSEN, CHOSEN + 1)
        ),
        claim_row(
            "angle of 9 spikes less that of 3, mean over n",
            "°",
            statistics.fmean(angles[2][1] - angles[0][1] for angles in ANGLES),
            [statistics.fmean(one) for one in further],
            all(statistics.fmean(at) > 0 for at in zip(*further, strict=True)),
            "the leading 3 are most stable: they turn less than 9 at every n (the paper's own do not at n = 256)",
        ),
        claim_row(
            "fall of the mean angle of 9 spikes, from the smallest n to the largest compared",
            "°",
            ANGLES[0][2][1] - ANGLES[-1][2][1],
            [angle(one, 0, 2) - angle(one, compared[-1], 2) for one in found],
            all(before > after for before, after in pairwise(means)),
            "the subspace turns less the larger n is, at every n",
        ),
    ]


def _smallest_gap(sizes: Any) -> float:
    runs = [at["fixed"]["against_largest"] for at in sizes[: len(COSINES)]]
    return float(min(run["matched_mean"] - run["diagonal_mean"] for run in runs))


def _recovery(found: Sequence[Any]) -> list[Row]:
    """Whether ten steps suffice for nine spikes, at the paper's n."""
    recovered = [float(recovered_values(sizes[CHOSEN])) for sizes in found]
    turned = [float(sizes[CHOSEN]["fixed_against_converged"]["angles"][-1]["mean"]) for sizes in found]
    n = found[0][CHOSEN]["samples"]
    return [
        claim_row(
            f"of nine, Ritz values within 5 % of the converged ones, n = {n}",
            "",
            9.0,
            recovered,
            min(recovered) == 9,
            f"{STEPS} steps suffice to recover all nine spikes: all nine on every split",
        ),
        claim_row(
            f"mean angle of 9 spikes, {STEPS} steps to converged, n = {n}",
            "°",
            None,
            turned,
            statistics.fmean(turned) < 10,
            f"{STEPS} steps suffice to recover the span of nine spikes: below 10° on average",
        ),
        shown_row(
            f"of nine, spikes with a relative residual of 1 % after {STEPS} steps, n = {n}",
            "",
            None,
            each(found, CHOSEN, lambda at: at["fixed"]["converged"]),
            "the paper gives no residuals",
        ),
    ]


def recovered_values(size: Any) -> int:
    """How many of nine Ritz values are within 5 % of the converged eigenvalue of the same rank."""
    pairs = zip(size["fixed"]["eigenvalues"], size["converged"]["eigenvalues"], strict=False)
    return sum(abs(ritz - true) <= 0.05 * true for ritz, true in pairs)


def draw(measured: dict[str, Sequence[Measured]]) -> "Figure":
    """Draw the eigenvalues at n = 128, and the mean angle of nine spikes by n."""
    found = [one["sizes"] for one in measured["cifar10"]]
    figure, (left, right) = new_figure(1, 2, size=(10, 4.4))
    first = found[0][CHOSEN]
    ranks = range(1, 10)
    left.plot(ranks, EIGENVALUES[CHOSEN], ".:", color=GREY, label=f"the paper, {STEPS} steps")
    drawn = list(EIGENVALUES[CHOSEN])
    for run, colour, label in (("converged", BLUE, "converged"), ("fixed", VERMILION, f"{STEPS} steps")):
        values = first[run]["eigenvalues"]
        drawn += values
        left.plot(range(1, len(values) + 1), values, "o-", color=colour, markersize=4, label=label)
        angles = [statistics.fmean(angle(one, size, 2, run) for one in found) for size in range(len(ANGLES))]
        right.plot([at["samples"] for at in found[0][:-1]], angles, "o-", color=colour, label=label)
    scale_eigenvalues(left, drawn)
    left.set(title=f"Spikes at n = {first['samples']}", xlabel="rank", ylabel="λ")
    right.plot(SIZES[:-1], [angles[2][1] for angles in ANGLES], ".:", color=GREY, label=f"the paper, {STEPS} steps")
    right.set(title="Mean angle of 9 spikes to the largest batch", xlabel="n", ylabel="degrees", ylim=(0, 92))
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=9)
    return figure


ITEM = Item("stability", ("cifar10",), measure, rows, draw)
