"""Table 2: the ten leading eigenvalues, with the paper's ten Lanczos steps and converged."""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hessian_surgery.curvature.search import SpikeSearch
from hessian_surgery.report.figure_style import BLUE, GREY, VERMILION, new_figure, scale_eigenvalues
from hessian_surgery.reproduce.item import Item, Measured
from hessian_surgery.reproduce.row import Row, claim_row, shown_row
from hessian_surgery.reproduce.spectrum_runs import SAMPLES, spectrum_run
from hessian_surgery.reproduce.workbench import Workbench
from hessian_surgery.studies.class_alignment import alignment
from hessian_surgery.studies.study_inputs import open_finder
from hessian_surgery.studies.subspace_angles import spike_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Table 2; it gives the ninth as "~0".
PAPER = (828.6, 577.8, 310.7, 243.5, 153.2, 112.5, 58.9, 20.5, 0.0, -1.1)
PAPER_BULK = 0.0134
STEPS = 10
CLEAR = 8
OTHER = "another network: eigenvalues scale with its weights and its loss"


def measure(bench: Workbench, split: int) -> Measured:
    """Ten Ritz values of ten steps, converged eigenvalues, the bulk, and what spikes align with."""
    samples = bench.number(SAMPLES, 64)
    training = bench.source.part("train", "data")
    model = bench.model()
    ten = SpikeSearch(spikes=STEPS, lanczos_steps=STEPS, signs="all", hessian_samples=samples)
    fixed = open_finder(model, training, ten, "*", split).find()
    finder = open_finder(model, training, SpikeSearch(hessian_samples=samples), "*", split)
    spikes = finder.find()
    whole = spectrum_run(bench, split)
    return {
        "ritz": fixed.eigenvalues.tolist(),
        "residuals": fixed.residuals.tolist(),
        "converged": whole["eigenvalues"],
        "bulk": whole["bulk"],
        "lowest": min(min(nodes) for nodes in whole["density"]["nodes"]),
        "classes": len(training.classes),
        "alignment": alignment(finder, spike_rows(spikes)),
    }


def rows(measured: dict[str, Sequence[Measured]]) -> list[Row]:
    """Each eigenvalue beside the paper's, and what the paper reads off them."""
    found = measured["cifar10"]
    shown = [
        shown_row(f"λ{rank}, {STEPS} steps", "", PAPER[rank - 1], [one["ritz"][rank - 1] for one in found], OTHER)
        for rank in range(1, STEPS + 1)
    ]
    beside = [
        shown_row(f"λ{rank}, converged", "", None, [one["converged"][rank - 1] for one in found], OTHER)
        for rank in range(1, STEPS + 1)
    ]
    return [*shown, *beside, *_outliers(found), *_ends(found), *_over_runs(found), *_aligned(found)]


def _outliers(found: Sequence[Measured]) -> list[Row]:
    medians = [one["bulk"]["median"] for one in found]
    clear = [one["ritz"][CLEAR - 1] / median for one, median in zip(found, medians, strict=True)]
    gaps = [widest_gap(one["converged"]) for one in found]
    classes = found[0]["classes"]
    return [
        shown_row("median |λ| of the bulk", "", PAPER_BULK, medians, OTHER),
        claim_row(
            f"λ{CLEAR} over the bulk's median ({STEPS} steps)",
            "",
            PAPER[CLEAR - 1] / PAPER_BULK,
            clear,
            min(clear) >= 1000,
            f"the {CLEAR} leading Ritz values are 1,000 times the median or more, on every split",
        ),
        claim_row(
            "anisotropy λ₁ over the bulk's median",
            "",
            6.2e4,
            [one["ritz"][0] / median for one, median in zip(found, medians, strict=True)],
            all(one["ritz"][0] >= 1e4 * median for one, median in zip(found, medians, strict=True)),
            "10,000 or more on every split",
        ),
        claim_row(
            "eigenvalues before the widest gap, converged",
            "",
            classes - 1.0,
            gaps,
            all(gap == classes - 1 for gap in gaps),
            "the number of spikes is that of classes minus one: the largest ratio of neighbours "
            "from λ₂ on follows that rank, on every split",
        ),
    ]


def widest_gap(values: Sequence[float]) -> int:
    """After which rank, from 2 on, descending eigenvalues fall by the largest factor.

    Values that are not positive are left out. Between the first two there is often a wide gap,
    which does not separate spikes from a bulk.
    """
    positive = [value for value in values if value > 0]
    ratios = {rank: positive[rank - 1] / positive[rank] for rank in range(2, len(positive))}
    return max(ratios, key=lambda rank: ratios[rank], default=len(positive))


def _ends(found: Sequence[Measured]) -> list[Row]:
    """The ninth and the tenth."""
    tenth = [one["ritz"][9] / one["ritz"][0] for one in found]
    lowest = [one["lowest"] / one["bulk"]["quantiles"][-1] for one in found]
    return [
        *(
            claim_row(
                f"λ₉ over λ₁, {label}",
                "%",
                0.0,
                [100 * one[key][8] / one[key][0] for one in found],
                all(abs(one[key][8]) < 0.01 * one[key][0] for one in found),
                "the ninth is about 0: below 1 % of λ₁ on every split",
            )
            for key, label in (("ritz", f"{STEPS} steps"), ("converged", "converged"))
        ),
        claim_row(
            f"λ₁₀ over λ₁, {STEPS} steps",
            "%",
            100 * PAPER[9] / PAPER[0],
            [100 * share for share in tenth],
            max(tenth) < 0,
            "the tenth Ritz value is negative on every split",
        ),
        claim_row(
            "lowest eigenvalue of 90 steps, in units of the bulk's 99.9 % point of |λ|",
            "",
            None,
            lowest,
            min(lowest) >= -1,
            "the negative tenth is noise, the true value being of bulk size: no eigenvalue lies "
            "below minus the bulk's 99.9 % point, on every split",
        ),
    ]


def _over_runs(found: Sequence[Measured]) -> list[Row]:
    """How much magnitudes and ratios change from run to run; none with a single run."""
    if len(found) < 2:
        return []
    leading = [one["ritz"][0] for one in found]
    spread = variation(leading)
    ratios = [variation([one["ritz"][rank] / one["ritz"][0] for one in found]) for rank in range(1, CLEAR)]
    return [
        claim_row(
            "λ₁: largest run over smallest",
            "",
            1.5,
            [max(leading) / min(leading)],
            max(leading) / min(leading) <= 1.75,
            "magnitudes change by a factor of about 1.5: at most 1.75",
        ),
        claim_row(
            f"variation of λᵢ/λ₁ over runs, mean of i = 2 … {CLEAR}, less that of λ₁",
            "pp",
            None,
            [100 * (statistics.fmean(ratios) - spread)],
            statistics.fmean(ratios) < spread,
            "ratios are stable: their coefficient of variation is below that of λ₁",
        ),
    ]


def variation(values: Sequence[float]) -> float:
    """The coefficient of variation: standard deviation over |mean|."""
    return statistics.stdev(values) / abs(statistics.fmean(values))


def _aligned(found: Sequence[Measured]) -> list[Row]:
    mean = {key: [100 * statistics.fmean(one["alignment"][key]) for one in found] for key in found[0]["alignment"]}
    return [
        claim_row(
            "spikes in the span of class-mean gradients (mean cos²)",
            "%",
            None,
            mean["classes"],
            statistics.fmean(mean["classes"]) >= 50,
            "spikes align with class-mean directions: half of their squared length or more",
        ),
        claim_row(
            "the same less that of random groups of the same images",
            "%",
            None,
            [one - other for one, other in zip(mean["classes"], mean["shuffled"], strict=True)],
            all(one > other for one, other in zip(mean["classes"], mean["shuffled"], strict=True)),
            "classes matter: the share is larger than in the span of mean gradients over groups "
            "of the same sizes formed at random, on every split",
        ),
        shown_row("random vectors in the span of class-mean gradients", "%", None, mean["random"], "a control"),
    ]


def draw(measured: dict[str, Sequence[Measured]]) -> "Figure":
    """Draw the first run's eigenvalues by rank, and what share of each spike is class means."""
    found: dict[str, Any] = measured["cifar10"][0]
    figure, (left, right) = new_figure(1, 2, size=(10, 4.4))
    converged = found["converged"]
    left.plot(range(1, len(converged) + 1), converged, "o-", color=BLUE, markersize=4, label="converged")
    left.plot(range(1, STEPS + 1), found["ritz"], "x--", color=VERMILION, label=f"{STEPS} steps")
    left.plot(range(1, STEPS + 1), PAPER, ".:", color=GREY, label=f"the paper, {STEPS} steps")
    scale_eigenvalues(left, (*converged, *found["ritz"], *PAPER))
    left.set(title="Leading eigenvalues", xlabel="rank", ylabel="λ")
    shares = found["alignment"]
    for key, colour, label in (("classes", BLUE, "class means"), ("shuffled", GREY, "random groups")):
        ranks = range(1, len(shares[key]) + 1)
        right.plot(ranks, [100 * share for share in shares[key]], "o-", color=colour, markersize=4, label=label)
    right.set(title="Share of a spike in mean gradients", xlabel="rank of the spike", ylabel="%", ylim=(0, 100))
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=9)
    return figure


ITEM = Item("eigenvalues", ("cifar10",), measure, rows, draw)
