"""LoopConfig: the choices of the paper's loop, Algorithm 2."""

from dataclasses import dataclass, fields
from typing import ClassVar, Literal, TypeAlias

from hessian_surgery.errors import require
from hessian_surgery.operation.config import OperationConfig, require_choice, require_fraction
from hessian_surgery.paper.amplitude import Control
from hessian_surgery.paper.plan import Bound
from hessian_surgery.short_repr import short_repr

Reference: TypeAlias = Literal["start", "previous"]
Returned: TypeAlias = Literal["best", "last"]
SensitivityMethod: TypeAlias = Literal["gradients", "differences"]


@dataclass(frozen=True, kw_only=True)
class LoopConfig(OperationConfig):
    """The paper's loop. The defaults are ours; `paper_config` gives the paper's.

    `OperationConfig` describes the other attributes. A strong class is one above the mean accuracy
    plus one σ; a protected class may be planned to lose 0.01, counted from `reference`.

    Attributes:
        iterations: T, in each phase.
        phases: of sequential deflated surgery (section 8). Each phase takes the next K spikes, and
            deflates those of earlier phases away.
        amplitude: α_max^(0), the length of a step in weight space. None sets it from the leading
            eigenvalue, so that every model starts with the same second-order cost
            (`curvature_amplitude`).
        control: how α_max follows the outcome of each iteration: γ-decay, or the paper's Adam-style
            control, which takes long to recover from a rollback.
        bound: one norm ball for all coefficients, or a box per spike (eq. 11).
        exponent: p of the class-error weights (eq. 6); "auto" applies the p-rule (table 3).
        reference: whether drops count from the starting model, or from the previous iteration as in
            the paper.
        rollback_sigma: an iteration that raises σ by more is rolled back.
        rollback_drop: an iteration after which a class has dropped by more is rolled back.
        returned: the best accepted weights on the calibration data, or the last ones, as in the
            paper.
        patience: stop after so many iterations without a gain; None never does.
        sensitivity: how S is found: from one gradient per class, or by central differences of the
            exact accuracies, as in the paper, in 2K passes over the calibration images.

    Example:
        >>> hs.LoopConfig(iterations=3, control="adam")
        LoopConfig(iterations=3, control='adam')
    """

    iterations: int = 15
    phases: int = 1
    amplitude: float | None = None
    control: Control = "gamma"
    bound: Bound = "ball"
    exponent: float | Literal["auto"] = 2.0
    reference: Reference = "start"
    rollback_sigma: float = 0.005
    rollback_drop: float = 0.07
    returned: Returned = "best"
    patience: int | None = None
    sensitivity: SensitivityMethod = "gradients"

    algorithm: ClassVar[str] = "loop"

    __repr__ = short_repr

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.phases >= 1, "phases", self.phases, "at least 1")
        enough = self.patience is None or self.patience >= 1
        require(enough, "patience", self.patience, "at least 1")
        literals = {
            "control": Control,
            "bound": Bound,
            "reference": Reference,
            "returned": Returned,
            "sensitivity": SensitivityMethod,
        }
        for name, literal in literals.items():
            require_choice(self, name, literal)
        for name in ("rollback_sigma", "rollback_drop"):
            require_fraction(self, name)
        number = self.exponent if isinstance(self.exponent, (int, float)) else -1
        require(self.exponent == "auto" or number >= 0, "exponent", self.exponent, "p ≥ 0 or 'auto'")
        enough = self.amplitude is None or self.amplitude > 0
        require(enough, "amplitude", self.amplitude, "a positive number")

    @property
    def uses_spikes(self) -> bool:
        """Always: the loop moves along spikes."""
        return True

    @property
    def uses_gradients(self) -> bool:
        """Never: the loop moves along spikes."""
        return False

    def check_classes(self, classes: tuple[str, ...]) -> None:
        """Nothing to check: no choice of the loop names a class."""

    @property
    def total_iterations(self) -> int:
        """Iterations of all phases together."""
        return self.phases * self.iterations

    @property
    def vectors_beside(self) -> int:
        """Spikes of earlier phases that are kept beside the Lanczos basis, in units of K."""
        return self.phases - 1


def as_loop(config: OperationConfig) -> LoopConfig:
    """The loop with the same shared choices, but its own number of iterations."""
    if isinstance(config, LoopConfig):
        return config
    shared = {own.name: getattr(config, own.name) for own in fields(OperationConfig) if own.name != "iterations"}
    return LoopConfig(**shared)
