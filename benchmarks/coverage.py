"""How often intervals hold the truth: changes of σ and of the worst class, in simulated operations.

The truth is the change of the true class accuracies' σ (or worst class). True accuracies are drawn
in each run and scaled to a given σ; an operation multiplies their distances from the mean by a
factor, and a share of the images changes its answer besides. A factor of 1 is the null: nothing
changes in truth, so σ is "lower" by chance alone.

python -m benchmarks.coverage --runs 2000
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hessian_surgery.evidence.difference import Difference, by_percentiles
from hessian_surgery.evidence.noise_free_sigma import sigma_change
from hessian_surgery.evidence.resampled_pairs import ResampledPairs, resample_pairs
from hessian_surgery.types import Array

RESULTS = Path(__file__).parent / "results" / "coverage.json"
# Share of the images whose answer changes between right and wrong if no accuracy does.
CHURN = 0.05


@dataclass(frozen=True)
class Case:
    """A simulated operation.

    Attributes:
        images: of each class (C).
        accuracy: mean of the true class accuracies before.
        sigma: their σ before.
        factor: what the operation multiplies σ by; 1 if it changes nothing.
    """

    images: tuple[int, ...]
    accuracy: float
    sigma: float
    factor: float

    def __str__(self) -> str:
        each = f"{self.images[0]}" if len(set(self.images)) == 1 else f"{min(self.images)} to {max(self.images)}"
        return f"{len(self.images)} classes of {each}, σ {100 * self.sigma:g} pp × {self.factor:g}"


RARE = (24, 28, 66, 102, 220, 222, 1342)
CASES = (
    Case((500,) * 10, 0.87, 0.06, 0.7),
    Case((500,) * 10, 0.87, 0.06, 0.3),
    Case((100,) * 10, 0.87, 0.06, 0.5),
    Case((36,) * 10, 0.87, 0.06, 0.3),
    Case((50,) * 100, 0.6, 0.15, 0.85),
    Case((50,) * 100, 0.6, 0.15, 0.6),
    Case(RARE, 0.6, 0.2, 0.5),
    *(Case((images,) * 10, 0.87, sigma, 1.0) for images in (500, 100, 36) for sigma in (0.06, 0.0)),
    *(Case((50,) * 100, 0.6, sigma, 1.0) for sigma in (0.15, 0.06, 0.0)),
    Case(RARE, 0.6, 0.2, 1.0),
)


def draw_profile(case: Case, draw: np.random.Generator) -> tuple[Array, Array]:
    """Draw true class accuracies (C,) before and after."""
    while True:
        normal = draw.normal(size=len(case.images))
        distance = case.sigma * (normal - normal.mean()) / normal.std()
        before = case.accuracy + distance
        if before.min() >= 0.02 and before.max() <= 0.995:
            return before, case.accuracy + case.factor * distance


def draw_kinds(case: Case, before: Array, after: Array, draw: np.random.Generator) -> Array:
    """Draw how many images of each class (C, 4) are right both times, only before, after, never.

    Each image has a luck in [0, 1) and is right if that is below its class's accuracy. A share of
    the images draws its luck again for the answer after.
    """
    again = CHURN / (2 * case.accuracy * (1 - case.accuracy))
    both = (1 - again) * np.minimum(before, after) + again * before * after
    share = np.stack([both, before - both, after - both, 1 - before - after + both], axis=1)
    kinds: Array = draw.multinomial(case.images, np.clip(share, 0, 1)).astype(np.float64)
    return kinds


def raw_sigma_change(pairs: ResampledPairs) -> Difference:
    """The change of σ as measured, with percentiles of its resamples, for comparison."""
    change = pairs.after.std() - pairs.before.std()
    return by_percentiles(change, pairs.drawn_after.std(axis=1) - pairs.drawn_before.std(axis=1))


def worst_change(pairs: ResampledPairs) -> Difference:
    """The change of the worst class's accuracy, as `paired_tests` has it."""
    change = pairs.after.min() - pairs.before.min()
    return by_percentiles(change, pairs.drawn_after.min(axis=1) - pairs.drawn_before.min(axis=1))


# What is measured, how its truth follows from class accuracies, and the sign of a gain.
MEASURED = {
    "sigma": (sigma_change, np.std, -1),
    "raw sigma": (raw_sigma_change, np.std, -1),
    "worst": (worst_change, np.min, 1),
}


def simulate(case: Case, runs: int, resamples: int, seed: int) -> dict[str, dict[str, float]]:
    """Simulate one case: how often each interval holds the truth, and how often it shows a gain."""
    draw = np.random.default_rng(seed)
    rows: dict[str, list[tuple[float, ...]]] = {name: [] for name in MEASURED}
    for _ in range(runs):
        before, after = draw_profile(case, draw)
        pairs = resample_pairs(draw_kinds(case, before, after, draw), draw, resamples)
        for name, (measure, statistic, sign) in MEASURED.items():
            found = measure(pairs)
            low, high = found.interval
            truth = float(statistic(after) - statistic(before))
            gain = high < 0 if sign < 0 else low > 0
            rows[name].append((low <= truth <= high, gain, found.difference - truth, high - low))
    names = ("coverage", "gain", "bias", "width")
    return {
        name: dict(zip(names, np.array(own, dtype=float).mean(axis=0).tolist(), strict=True))
        for name, own in rows.items()
    }


def main() -> None:
    """Simulate all cases, print a table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--resamples", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    started = time.perf_counter()
    cases: list[dict[str, Any]] = []
    print(f"{'':44} | " + " | ".join(f"{name:>22}" for name in MEASURED))
    print(f"{'':44} | " + " | ".join(f"{'held':>6} {'gain':>6} {'bias pp':>8}" for _ in MEASURED))
    for case in CASES:
        found = simulate(case, options.runs, options.resamples, options.seed)
        sizes = {"classes": len(case.images), "images": sorted(set(case.images))}
        cases.append(asdict(case) | sizes | {"measured": found})
        cells = (f"{f['coverage']:6.3f} {f['gain']:6.3f} {100 * f['bias']:+8.2f}" for f in found.values())
        print(f"{case!s:44} | " + " | ".join(cells), flush=True)
    settings = {"runs": options.runs, "resamples": options.resamples, "seed": options.seed, "churn": CHURN}
    content = settings | {"seconds": time.perf_counter() - started, "cases": cases}
    options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
