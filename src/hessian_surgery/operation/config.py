"""Configuration: the choices that both algorithms share, and those of the default operation."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from hessian_surgery.curvature.search import SpikeSearch
from hessian_surgery.data.class_names import class_number
from hessian_surgery.errors import InputError, require
from hessian_surgery.operation.goal import Target
from hessian_surgery.parse_numbers import parse_accuracy, parse_amount
from hessian_surgery.short_repr import short_repr
from hessian_surgery.type_check import require_types

Family: TypeAlias = Literal["refit", "class-gradients", "spikes", "both", "biases"]


@dataclass(frozen=True, kw_only=True)
class OperationConfig(ABC):
    """The choices that the default operation and the paper's loop share.

    Attributes:
        iterations: how many at most; each finds directions, plans a step, takes it and checks.
        target: what to make small: σ, or the worst class's error.
        strong_above: classes above this accuracy are strong, and protected; None leaves it to the
            algorithm.
        max_drop: the accuracy that a protected class may lose, as a fraction; None leaves it to the
            algorithm.
        search: how spikes are sought, if any are.
        parameters: glob over the names of the weights that may move.
        calibration_cap: calibration images per class at most; None takes all.
        calibrate_on_training: whether the calibration images are training images, as in section
            9.2; images that the two share are then no leak. Held-out images must judge.
        batch_size: images per forward pass; None lets a short trial choose (`model/passes.py`).
        seed: fixes every random draw.
        recalibrate: fit one temperature to the calibration images after the operation, and divide
            the head's weights and biases by it; no prediction changes.

    Example:
        >>> [isinstance(one, hs.OperationConfig) for one in (hs.SurgeryConfig(), hs.LoopConfig())]
        [True, True]
    """

    iterations: int = 1
    target: Target = "sigma"
    strong_above: float | None = None
    max_drop: float | None = None
    search: SpikeSearch = field(default_factory=SpikeSearch)
    parameters: str = "*"
    calibration_cap: int | None = None
    calibrate_on_training: bool = False
    batch_size: int | None = None
    seed: int = 0
    recalibrate: bool = False

    # The algorithm that follows these choices; `operation/algorithms.py` knows it by this name.
    algorithm: ClassVar[str]

    def __post_init__(self) -> None:
        for name in ("budget", "max_drop"):
            if isinstance(value := getattr(self, name, None), str):
                object.__setattr__(self, name, parse_amount(name, value))
        require_types(self)
        for name in ("iterations", "batch_size", "calibration_cap"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "at least 1")
        require_choice(self, "target", Target)
        require(self.seed >= 0, "seed", self.seed, "0 or more")
        if self.max_drop is not None:
            require_fraction(self, "max_drop")

    @property
    @abstractmethod
    def uses_spikes(self) -> bool:
        """Whether the operation needs the Hessian."""

    @property
    @abstractmethod
    def uses_gradients(self) -> bool:
        """Whether the operation moves along class gradients."""

    @property
    def uses_refit(self) -> bool:
        """Whether steps may start from a refitted head."""
        return False

    @property
    def alone(self) -> tuple[str, ...]:
        """Classes that share no direction with others, however many classes there are."""
        return ()

    @property
    def total_iterations(self) -> int:
        """Iterations at most, over all phases if there are several."""
        return self.iterations

    @property
    def vectors_beside(self) -> int:
        """Spikes of earlier phases that are kept beside the Lanczos basis, in units of K."""
        return 0

    @abstractmethod
    def check_classes(self, classes: tuple[str, ...]) -> None:
        """Raise an InputError if a choice names a class that does not exist."""

    def as_dict(self) -> dict[str, Any]:
        """The form that `config.json` holds."""
        plain = {own.name: getattr(self, own.name) for own in fields(self)}
        return {"algorithm": self.algorithm} | plain | {"search": self.search.as_dict()}


@dataclass(frozen=True, kw_only=True)
class SurgeryConfig(OperationConfig):
    """The default operation: a verified step, proposed by a linear model of the logits.

    `OperationConfig` describes the other attributes. A strong class is one above the mean accuracy;
    a protected class may lose `default_max_drop`.

    Attributes:
        directions: what the weights move along, beside the head's biases: class gradients, spikes,
            or both; "refit" for class gradients and, if there is a linear head that may move, that
            head fitted again; "biases" for nothing beside them, which takes a few forward passes.
        budget: accuracy that may be given up against the starting model, as a fraction.
        targets: accuracies to reach, by class name.
        protect: names of the protected classes; by default the strong ones.
        classes_of_interest: names of classes that get directions of their own, where there are so
            many that others share one. Those with a target have their own anyway.

    Example:
        >>> hs.SurgeryConfig(budget=0.005, targets={"cat": 0.6}, protect=("ant",), max_drop=0.1)
        SurgeryConfig(max_drop=0.1, budget=0.005, targets={'cat': 0.6}, protect=('ant',))
    """

    directions: Family = "refit"
    budget: float = 0.002
    targets: Mapping[str, float] = field(default_factory=dict)
    protect: tuple[str, ...] = ()
    classes_of_interest: tuple[str, ...] = ()

    algorithm: ClassVar[str] = "default"

    __repr__ = short_repr

    def __post_init__(self) -> None:
        if isinstance(self.targets, Mapping):
            read = {name: parse_accuracy("targets", v) if isinstance(v, str) else v for name, v in self.targets.items()}
            object.__setattr__(self, "targets", read)
        super().__post_init__()
        require_choice(self, "directions", Family)
        require_fraction(self, "budget")

    @property
    def uses_spikes(self) -> bool:
        """Whether the operation needs the Hessian."""
        return self.directions in ("spikes", "both")

    @property
    def uses_gradients(self) -> bool:
        """Whether the operation moves along class gradients."""
        return self.directions in ("class-gradients", "both", "refit")

    @property
    def uses_refit(self) -> bool:
        """Whether steps may start from a refitted head."""
        return self.directions == "refit"

    @property
    def alone(self) -> tuple[str, ...]:
        """Classes that share no direction with others: with a target, or of interest."""
        return tuple(dict.fromkeys((*self.targets, *self.classes_of_interest)))

    def check_classes(self, classes: tuple[str, ...]) -> None:
        """Raise an InputError if a class is unknown, or has a target and is protected."""
        for name in self.protect:
            class_number(name, classes, "protect")
        for name in self.classes_of_interest:
            class_number(name, classes, "classes_of_interest")
        for name, value in self.targets.items():
            class_number(name, classes, "targets")
            if name in self.protect:
                raise InputError(f"protect: {name!r} has a target as well; give one of the two")
            if not 0 < value <= 1:
                raise InputError(f"targets: got {name}={value:g}; give an accuracy as a fraction, such as 0.8")

    def as_dict(self) -> dict[str, Any]:
        """The form that `config.json` holds."""
        lists = {"protect": list(self.protect), "classes_of_interest": list(self.classes_of_interest)}
        return super().as_dict() | {"targets": dict(self.targets)} | lists


def as_surgery(config: OperationConfig) -> SurgeryConfig:
    """The default operation with the shared choices, but its own iterations and strong classes."""
    if isinstance(config, SurgeryConfig):
        return config
    own = ("iterations", "strong_above")
    return SurgeryConfig(
        **{key.name: getattr(config, key.name) for key in fields(OperationConfig) if key.name not in own}
    )


def require_choice(config: OperationConfig, name: str, literal: Any) -> None:
    """Raise an InputError unless a field holds one of a literal's values."""
    value = getattr(config, name)
    require(value in get_args(literal), name, value, f"one of {', '.join(get_args(literal))}")


def require_fraction(config: OperationConfig, name: str) -> None:
    """Raise an InputError unless a field holds a fraction."""
    value = getattr(config, name)
    require(0 <= value <= 1, name, value, "a fraction between 0 and 1")
