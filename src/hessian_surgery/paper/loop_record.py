"""What the loop records of an iteration."""

from dataclasses import dataclass

from hessian_surgery.operation.iteration_record import IterationRecord
from hessian_surgery.short_repr import short_repr


@dataclass(frozen=True, kw_only=True)
class LoopRecord(IterationRecord):
    """An iteration of Algorithm 2.

    Attributes:
        phase: of sequential deflated surgery, from 1.
        alpha_max: the amplitude: the length that the step might have.
        smoothed_sigma: γ-decay's moving average of σ after the iteration (table 5's EMA); None with
            the Adam-style control.
        predicted_change: of each class's accuracy (C), Sᵀα.
        deflation: how many vectors were deflated, their overlap with the spikes, and how stale they
            are; None in the first phase.

    Example:
        >>> parts = {"training_data": train, "calibration_data": calibration}
        >>> config = hs.LoopConfig(iterations=1)
        >>> outcome = hs.operate(model, **parts, heldout_data=heldout, config=config)
        >>> outcome.iterations[0].alpha_max > 0
        True
    """

    phase: int
    alpha_max: float
    smoothed_sigma: float | None
    predicted_change: list[float]
    deflation: dict[str, float] | None = None

    __repr__ = short_repr

    @property
    def reach(self) -> float:
        """The length that the step might have."""
        return self.alpha_max
