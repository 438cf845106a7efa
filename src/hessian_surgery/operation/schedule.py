"""A schedule: the stages of a run, what each should take, and the time that is left."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# What is expected of the rest counts as measured by this share: what the first stages take says
# little about the others.
TRUST = 0.5
# A silent stage is taken to last longer by this share of its silence, at least; and by all the time
# by which it is overdue.
SILENT = 0.25


@dataclass(frozen=True)
class Expected:
    """A stage that is to come.

    Attributes:
        name: such as "directions".
        seconds: what it should take; or any other measure of its work, if the schedule knows no
            seconds.
        iteration: the iteration that it belongs to, from 1; 0 if none.
        fold: the fold, likewise.
    """

    name: str
    seconds: float
    iteration: int = 0
    fold: int = 0


class Schedule:
    """Where a run stands. What is expected is corrected by what stages take.

    Args:
        clock: seconds, from any start.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._pending: list[Expected] = []
        self._trust = 0.0
        self._took: dict[str, tuple[float, float]] = {}
        self._present: Expected | None = None
        self._began = self._told = self._started
        self._share = 0.0
        self._most = 0.0
        self._announced = False

    def expect(self, stages: Sequence[Expected], in_seconds: bool = True) -> None:
        """Take note of all stages that are to come, in order.

        Args:
            stages: what they are.
            in_seconds: False if their seconds are shares only, of a time that nobody knows yet.
        """
        self._pending = list(stages)
        self._trust = TRUST if in_seconds else 0.0
        self._announced = True

    @property
    def iterations(self) -> int:
        """How many there may be; 0 if that is not known."""
        return max((stage.iteration for stage in self._pending), default=0)

    @property
    def in_iteration(self) -> bool:
        """Whether the present stage belongs to an iteration."""
        return self._present is not None and self._present.iteration > 0

    def stage(self, name: str, done: float, total: int) -> None:
        """Take note that `done` of `total` units of a stage are finished."""
        share = done / total
        if self._present is None or name != self._present.name or share < self._share:
            self._begin(name)
        self._share = share
        self._told = self._clock()

    def skip(self, iteration: int = 0, fold: int = 0) -> None:
        """Strike what belongs to a fold or an iteration up to these, but is not done."""

        def struck(stage: Expected) -> bool:
            if fold:
                return 0 < stage.fold <= fold
            return stage.fold == self._pending[0].fold and 0 < stage.iteration <= iteration

        self._pending = [stage for stage in self._pending if not struck(stage)]

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._started

    @property
    def left(self) -> float | None:
        """Seconds that are left; None if nothing is known yet."""
        pace = self._pace()
        if not self._announced or pace is None:
            return None
        return self._left_of_present(pace) + sum(
            self._rate(stage.name, pace) * stage.seconds for stage in self._pending
        )

    @property
    def share(self) -> float:
        """The share of the run that is done; it never falls."""
        left = self.left
        if left is not None and self.elapsed > 0:
            self._most = max(self._most, self.elapsed / (self.elapsed + left))
        return self._most

    def _begin(self, name: str) -> None:
        """End the present stage, and go on to the next one of this name."""
        now = self._clock()
        if self._present is not None:
            expected, measured = self._took.get(self._present.name, (0.0, 0.0))
            own = (expected + self._present.seconds, measured + now - self._began)
            self._took[self._present.name] = own
        place = next((i for i, stage in enumerate(self._pending) if stage.name == name), None)
        self._present = Expected(name, 0.0) if place is None else self._pending[place]
        self._pending = self._pending if place is None else self._pending[place + 1 :]
        self._began = now

    def _pace(self) -> float | None:
        """Seconds that pass for each expected second; None if nothing was measured or expected."""
        if self._present is None:
            return self._pace_with(0.0, 0.0)
        own = self._present.seconds
        told = self._pace_with(self._share * own, self._told - self._began)
        # If a silent stage ended now, it would still have taken so long.
        at_least = self._pace_with(own, self._clock() - self._began) if self._trust else None
        return told if told is None or at_least is None else max(told, at_least)

    def _pace_with(self, expected: float, measured: float) -> float | None:
        """The pace, if so much of the present stage is done, and has taken so long."""
        # What nobody expected says nothing about the rest.
        known = [pair for pair in (*self._took.values(), (expected, measured)) if pair[0] > 0]
        trusted = self._trust * sum(stage.seconds for stage in self._pending)
        total = trusted + sum(pair[0] for pair in known)
        return (trusted + sum(pair[1] for pair in known)) / total if total > 0 else None

    def _rate(self, name: str, pace: float) -> float:
        """The pace of a stage: its own, if it was there before."""
        expected, measured = self._took.get(name, (0.0, 0.0))
        return measured / expected if expected > 0 else pace

    def _left_of_present(self, pace: float) -> float:
        """Seconds that the present stage still takes.

        The more of it is done, the less its expected time counts, and the more what it has taken.
        """
        if self._present is None:
            return 0.0
        done = self._share
        taken = self._told - self._began
        rest = self._rate(self._present.name, pace) * self._present.seconds * (1 - done)
        if done > 0 and self._present.seconds > 0:
            rest = (1 - done) * (taken + rest)
        elif done > 0:
            rest = taken * (1 - done) / done
        silent = self._clock() - self._told
        return max(rest - silent, SILENT * silent, silent - rest)
