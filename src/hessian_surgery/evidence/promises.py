"""Promises: was each thing that was asked for kept, on held-out images, as far as can be told?"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any, Literal, TypeAlias

from hessian_surgery.evidence.asked import Asked
from hessian_surgery.evidence.before_after import BeforeAfter
from hessian_surgery.evidence.difference import Difference
from hessian_surgery.evidence.metrics import wilson_interval
from hessian_surgery.evidence.paired_tests import FEW_IMAGES
from hessian_surgery.evidence.resampled_pairs import pair_counts
from hessian_surgery.types import Array

State: TypeAlias = Literal["reached", "missed", "kept", "broken", "cannot be told"]

# What an operation without targets aims at, in words.
AIMS = {"sigma": "a lower σ (without sampling noise)", "worst": "a better worst class"}
# What a state means for what was asked.
MET: dict[State, Literal["yes", "no", "undecided"]] = {
    "reached": "yes",
    "kept": "yes",
    "missed": "no",
    "broken": "no",
    "cannot be told": "undecided",
}
SIGNS: dict[State, str] = {"reached": "✓", "kept": "✓", "missed": "✗", "broken": "✗", "cannot be told": "?"}
# So many protected classes of a state are named in a line.
NAMED = 3
# Each end of a class's interval holds in 95 of 100 cases: the two together in 90.
ONE_SIDED = 0.90
# Standard errors in such an end.
QUANTILE = 1.645
# So many missed or broken promises have a warning of their own.
MOST_WARNINGS = 10


@dataclass(frozen=True)
class Promise:
    """One thing that was asked for, and whether held-out images show it. Figures are fractions.

    Attributes:
        promise: "target" (an accuracy to reach), "sigma" (a lower σ), "worst" (a better worst
            class), "budget" (the overall accuracy that may be given up) or "limit" (what a
            protected class may lose).
        name: the class of a target or limit; else None.
        asked: the accuracy, or the loss that is allowed; 0 for an aim.
        measured: the accuracy after, or the change of accuracy, σ or the worst class.
        interval: of `measured`.
        state: "reached" or "missed", "kept" or "broken", if the whole interval says so.

    Example:
        >>> print(outcome.findings.promises[1].wanted)
        budget, at most 0.2 pp of accuracy lost
    """

    promise: Literal["target", "sigma", "worst", "budget", "limit"]
    name: str | None
    asked: float
    measured: float
    interval: tuple[float, float]
    state: State

    def as_dict(self) -> dict[str, Any]:
        """The form that `result.json` holds."""
        plain = {key: value for key, value in asdict(self).items() if key not in ("promise", "name")}
        return {"promise": self.promise, "class": self.name} | plain | {"met": self.met}

    @property
    def met(self) -> Literal["yes", "no", "undecided"]:
        """Whether it was kept, in one word."""
        return MET[self.state]

    @property
    def figure(self) -> str:
        """What was measured, with its interval, in percent or percentage points.

        The interval of a class says that it is one-sided: each of its ends holds at 95 % alone, so
        it is narrower than the class's interval elsewhere.
        """
        return self.bare_figure[:-1] + ("; one-sided]" if self.promise in ("target", "limit") else "]")

    @property
    def bare_figure(self) -> str:
        """The same, where the page says above it what intervals of classes are."""
        low, high = (100 * end for end in self.interval)
        if self.promise == "target":
            return f"{100 * self.measured:.1f} % [{low:.1f}, {high:.1f}]"
        return f"{100 * self.measured:+.1f} pp [{low:+.1f}, {high:+.1f}]"

    @property
    def wanted(self) -> str:
        """What was asked for, in words."""
        if self.promise == "target":
            return f"target {self.name} {100 * self.asked:g} %"
        if self.promise in AIMS:
            return AIMS[self.promise]
        if self.promise == "budget":
            return f"budget, at most {100 * self.asked:.3g} pp of accuracy lost"
        return f"limit of {self.name}, at most {100 * self.asked:.3g} pp lost"

    @property
    def why(self) -> str:
        """Why nothing can be told although the interval of a class would tell; or nothing."""
        bound = self.asked if self.promise == "target" else -self.asked
        told = self.promise in ("target", "limit") and (self.interval[0] >= bound or self.interval[1] < bound)
        return f", with fewer than {FEW_IMAGES} images" if told and self.state == "cannot be told" else ""

    def __str__(self) -> str:
        return f"{self.wanted}: {self.state} on the held-out images, {self.figure}"


def check_promises(
    asked: Asked, images: BeforeAfter, accuracy: Difference, aim: Difference | None = None
) -> tuple[Promise, ...]:
    """Check everything that was asked for: the targets or the aim, the budget, then the limits.

    A target is reached if even the lower end of the class's interval (Wilson's) is; a limit is kept
    if even the largest loss in the interval of the class's change is allowed. Each end holds in 95
    of 100 cases. The budget is compared with `accuracy`, the change over all images with its 95 %
    interval; so is `aim`, the change of σ or of the worst class, with 0. Nothing can be told of a
    class with few images.
    """
    kinds = dict(zip(images.classes, pair_counts(images), strict=True))
    found = [_target(name, wanted, kinds[name]) for name, wanted in asked.targets.items()]
    if aim is not None and not asked.targets:
        found.append(_aim(asked, aim, len(images.labels)))
    if asked.budget is not None:
        state = _state(accuracy.interval, -asked.budget, "kept", "broken", len(images.labels))
        found.append(Promise("budget", None, asked.budget, accuracy.difference, accuracy.interval, state))
    return (*found, *(_limit(name, allowed, kinds[name]) for name, allowed in asked.limits.items()))


def change_interval(gained: float, lost: float, images: float, quantile: float = QUANTILE) -> tuple[float, float]:
    """The interval of a change of accuracy, from the images that became right and wrong.

    Bonett and Price's: the normal interval after one gain and one loss are added, so that it does
    not shrink to nothing where hardly any image changed.
    """
    up, down = (gained + 1) / (images + 2), (lost + 1) / (images + 2)
    half = quantile * sqrt((up + down - (up - down) ** 2) / (images + 2))
    return float(max(-1.0, up - down - half)), float(min(1.0, up - down + half))


def promise_warnings(promises: tuple[Promise, ...]) -> tuple[str, ...]:
    """A sentence for each promise that was missed or broken; one sentence for those after ten."""
    found = [str(promise) for promise in promises if promise.state in ("missed", "broken")]
    more = f"{len(found) - MOST_WARNINGS:,} more targets or limits are missed or broken on the held-out images"
    return tuple(found[:MOST_WARNINGS]) + ((more,) if len(found) > MOST_WARNINGS else ())


def promise_lines(promises: Sequence[Promise]) -> list[str]:
    """One line for each target and the budget, and one for all protected classes together."""
    limits = [promise for promise in promises if promise.promise == "limit"]
    lines = [f"{SIGNS[p.state]} {p.wanted}: {p.state}{p.why}, {p.figure}" for p in promises if p.promise != "limit"]
    if limits:
        states = dict.fromkeys(promise.state for promise in limits)
        parts = [_group(state, [p for p in limits if p.state == state]) for state in states]
        sign = next(sign for sign in "✗?✓" if any(SIGNS[state] == sign for state in states))
        lines.append(f"{sign} protected classes, at most {100 * limits[0].asked:.1f} pp lost: {'; '.join(parts)}")
    return lines


def _aim(asked: Asked, change: Difference, images: int) -> Promise:
    low, high = change.interval if asked.aim == "worst" else (-change.interval[1], -change.interval[0])
    state: State = "reached" if low > 0 else "missed" if high < 0 else "cannot be told"
    state = state if images >= FEW_IMAGES else "cannot be told"
    return Promise(asked.aim, None, 0.0, change.difference, change.interval, state)


def _target(name: str, wanted: float, kinds: Array) -> Promise:
    images = int(kinds.sum())
    right = int(kinds[0] + kinds[2])
    interval = wilson_interval(right, images, ONE_SIDED)
    state = _state(interval, wanted, "reached", "missed", images)
    return Promise("target", name, wanted, right / images, interval, state)


def _limit(name: str, allowed: float, kinds: Array) -> Promise:
    _, lost, gained, _ = kinds
    images = int(kinds.sum())
    interval = change_interval(gained, lost, images)
    state = _state(interval, -allowed, "kept", "broken", images)
    return Promise("limit", name, allowed, float(gained - lost) / images, interval, state)


def _state(interval: tuple[float, float], bound: float, yes: State, no: State, images: int) -> State:
    if images < FEW_IMAGES:
        return "cannot be told"
    return yes if interval[0] >= bound else no if interval[1] < bound else "cannot be told"


def _group(state: str, promises: list[Promise]) -> str:
    """How many protected classes have a state; unless it is good, those that lost most by name."""
    if state == "kept":
        return f"{len(promises)} kept"
    promises = sorted(promises, key=lambda promise: promise.measured)
    named = ", ".join(f"{promise.name} {promise.figure}{promise.why}" for promise in promises[:NAMED])
    more = f" and {len(promises) - NAMED} more" if len(promises) > NAMED else ""
    return f"{len(promises)} {state} ({named}{more})"
