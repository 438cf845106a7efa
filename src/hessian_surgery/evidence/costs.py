"""Costs: which classes lost, and whether loss and calibration got worse beyond noise."""

from dataclasses import asdict, dataclass
from typing import Any

from hessian_surgery.evidence.difference import Difference
from hessian_surgery.evidence.paired_tests import FEW_IMAGES, PairedTests
from hessian_surgery.evidence.promises import change_interval

# Standard errors in each end of a 95 % interval.
WIDE = 1.96
# What mends probabilities.
REMEDY = "recalibrate fits one temperature against this"


@dataclass(frozen=True)
class LostClass:
    """A class that lost beyond chance: its name, and the change of its accuracy."""

    name: str
    change: Difference

    def __str__(self) -> str:
        return f"{self.name} {self.change}"


@dataclass(frozen=True)
class Costs:
    """What an operation cost on the held-out images.

    Attributes:
        lost: classes that lost beyond chance, by McNemar's test with Holm's correction.
        loss: mean −log p of the true class before and after, in nats.
        loss_change: its change with an interval.
        calibration_error: before and after, as fractions.
        calibration_change: its change with an interval.
        images: held-out images; with fewer than 50 nothing is claimed.
    """

    lost: tuple[LostClass, ...]
    loss: tuple[float, float]
    loss_change: Difference
    calibration_error: tuple[float, float]
    calibration_change: Difference
    images: int

    @property
    def loss_rose(self) -> bool:
        """Whether the loss rose beyond noise."""
        return self.images >= FEW_IMAGES and self.loss_change.interval[0] > 0

    @property
    def calibration_worsened(self) -> bool:
        """Whether the calibration error rose beyond noise."""
        return self.images >= FEW_IMAGES and self.calibration_change.interval[0] > 0

    def as_dict(self) -> dict[str, Any]:
        """The form that `result.json` holds."""
        lost = [{"class": one.name, **asdict(one.change)} for one in self.lost]
        return {"lost": lost, "loss_rose": self.loss_rose, "calibration_worsened": self.calibration_worsened}


def find_costs(tests: PairedTests, count: list[int]) -> Costs:
    """Collect the costs, from the tests and the held-out images of each class (C)."""
    lost = []
    for test, images in zip(tests.per_class, count, strict=True):
        if test.claim and test.p_holm < 0.05 and test.lost > test.gained:
            change = (test.gained - test.lost) / images
            lost.append(LostClass(test.name, Difference(change, change_interval(test.gained, test.lost, images, WIDE))))
    lost.sort(key=lambda one: one.change.difference)
    return Costs(
        tuple(lost), tests.nll, tests.nll_change, tests.calibration_error, tests.calibration_change, sum(count)
    )


def cost_lines(costs: Costs) -> list[str]:
    """What it costs, a line each for classes, loss and calibration."""
    named = ", ".join(map(str, costs.lost[:5])) + (f" and {len(costs.lost) - 5} more" if len(costs.lost) > 5 else "")
    return [
        f"classes that lost beyond chance: {named or 'none'}",
        f"loss {_loss(costs)}: {_moved(costs.loss_change, costs.images)}",
        f"calibration error {_calibration(costs)}: {_moved(costs.calibration_change, costs.images)}",
    ]


def cost_warnings(costs: Costs, remedied: bool = True) -> tuple[str, ...]:
    """A sentence for each of loss and calibration that got worse beyond noise.

    Args:
        costs: what was found.
        remedied: whether to say what mends probabilities; not if it was done, or cannot be.
    """
    remedy = f"; {REMEDY}" if remedied else ""
    found = []
    if costs.calibration_worsened:
        found.append(f"probabilities are less well calibrated: calibration error {_calibration(costs)}{remedy}")
    if costs.loss_rose:
        found.append(f"the loss rose: {_loss(costs)}{'' if found else remedy}")
    return tuple(found)


def _loss(costs: Costs) -> str:
    low, high = costs.loss_change.interval
    before, after = costs.loss
    return f"{before:.3f} → {after:.3f} nats, {costs.loss_change.difference:+.3f} [{low:+.3f}, {high:+.3f}]"


def _calibration(costs: Costs) -> str:
    before, after = costs.calibration_error
    return f"{100 * before:.1f} → {100 * after:.1f} %, {costs.calibration_change}"


def _moved(change: Difference, images: int) -> str:
    """Whether a change is worse, better, or within noise."""
    if images < FEW_IMAGES:
        return "too few images to tell"
    low, high = change.interval
    return "worse beyond noise" if low > 0 else "better beyond noise" if high < 0 else "within noise"
