"""SurgeryConfig: every choice that an operation makes, with the paper's settings as presets."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

from hessian_surgery.curvature.lanczos import TOLERANCE
from hessian_surgery.curvature.memory_plan import BasisPlace, BasisPrecision
from hessian_surgery.data.splits import Sampling
from hessian_surgery.errors import InputError
from hessian_surgery.model.evaluation import BATCH_SIZE
from hessian_surgery.model.losses import LossName
from hessian_surgery.paper.amplitude import Control
from hessian_surgery.paper.plan import Bound, Target

Algorithm: TypeAlias = Literal["planned", "loop"]
Family: TypeAlias = Literal["class-gradients", "spikes", "both"]
Reference: TypeAlias = Literal["start", "previous"]
Returned: TypeAlias = Literal["best", "last"]
Sensing: TypeAlias = Literal["gradients", "differences"]
PaperDataset: TypeAlias = Literal["cifar10", "cifar100", "isic"]
PaperStart: TypeAlias = Literal["ce", "focal", "class-balanced"]

# Rounds of Algorithm 2 where nothing else is said.
LOOP_ITERATIONS = 15


@dataclass(frozen=True)
class SurgeryConfig:
    """How to operate. The defaults are ours; `SurgeryConfig.paper(...)` gives the paper's.

    Attributes:
        algorithm: "planned", few verified steps that a surrogate of the logits proposes; or "loop", Algorithm 2.
        directions: what a planned operation moves along, beside the head's biases: class gradients, or spikes.
        budget: accuracy that a planned operation may give up, as a fraction, against the starting model.
        targets: accuracies that a planned operation is to reach, by class name.
        protect: names of the classes that a planned operation protects; by default the strong ones.
        iterations: rounds at most, of directions, plan, step and check; T of the loop, in each phase.
        phases: sequential deflated surgery (section 8): each phase takes the next K spikes, those of earlier phases
            being deflated away.
        spikes: K; None means C − 1.
        lanczos_steps: m, exactly; None goes on until the K spikes have converged.
        tolerance: relative residual at which a spike has converged.
        hessian_samples: n, images in the Hessian batch.
        hessian_sampling: how they are drawn from the Hessian data.
        redraw_hessian: draw a fresh batch each iteration, rather than once.
        micro_batch: images per part when the Hessian batch is streamed; None keeps it resident.
        basis: where the Lanczos basis is kept: on the model's device, in host memory or on disk; "auto" takes the first
            that fits.
        precision: "full" or "bfloat16" storage of the basis; "auto" halves it only where it would not fit.
        basis_memory: GB that the basis may take, wherever it is; None takes what is free.
        loss: the loss that the model was trained with.
        parameters: glob over the names of the weights that may move.
        amplitude: α_max^(0), the length of a step in weight space; None sets it from the leading eigenvalue so
            that every model starts with the same second-order cost (see `curvature_amplitude`).
        control: how α_max follows the outcome of each iteration: γ-decay, or the paper's Adam-style control, which
            takes long to recover from a rollback (docs/results.md).
        bound: one norm ball for all coefficients, or a box per spike (eq. 11).
        exponent: p of the class-error weights (eq. 6); "auto" applies the p-rule (table 3). On digits 2 does better
            than the rule's ½ (docs/results.md).
        target: what the p-rule and the choice of the best iterate aim at.
        strong_above: classes above this accuracy are strong, and protected; None means the mean, and in the loop the
            mean plus one σ.
        max_drop: how much of its accuracy a protected class may lose in a planned operation, `usual_drop` by default,
            or be planned to lose in an iteration of the loop, 0.01 by default.
        reference: whether drops count from the starting model or from the previous iteration, as in the paper.
        rollback_sigma: an iteration that raises σ by more is rolled back.
        rollback_drop: an iteration after which a class has dropped by more is rolled back.
        returned: the best accepted iterate on the calibration set, or the last one, as in the paper.
        patience: stop after so many iterations without a gain; None never does.
        sensitivity: how S is found: from one gradient per class (`gradient_sensitivity`), or by central differences of
            the exact accuracies, as in the paper, in 2K passes over the calibration images.
        calibration_cap: at most so many calibration images a class; None takes all.
        batch_size: images per forward pass.
        seed: fixes every random draw.
    """

    algorithm: Algorithm = "planned"
    directions: Family = "class-gradients"
    budget: float = 0.002
    targets: Mapping[str, float] = field(default_factory=dict)
    protect: tuple[str, ...] = ()
    iterations: int = 3
    phases: int = 1
    spikes: int | None = None
    lanczos_steps: int | None = None
    tolerance: float = TOLERANCE
    hessian_samples: int = 256
    hessian_sampling: Sampling = "natural"
    redraw_hessian: bool = False
    micro_batch: int | None = None
    basis: BasisPlace = "auto"
    precision: BasisPrecision = "auto"
    basis_memory: float | None = None
    loss: LossName = "cross-entropy"
    parameters: str = "*"
    amplitude: float | None = None
    control: Control = "gamma"
    bound: Bound = "ball"
    exponent: float | Literal["auto"] = 2.0
    target: Target = "sigma"
    strong_above: float | None = None
    max_drop: float | None = None
    reference: Reference = "start"
    rollback_sigma: float = 0.005
    rollback_drop: float = 0.07
    returned: Returned = "best"
    patience: int | None = None
    sensitivity: Sensing = "gradients"
    calibration_cap: int | None = None
    batch_size: int = BATCH_SIZE
    seed: int = 0

    def __post_init__(self) -> None:
        _check_at_least_one(self)
        _check_choices(self)
        for name, value in {"protect": self.protect, "target": self.targets}.items():
            _require(not value or self.algorithm == "planned", name, value, "left out: the loop has no use for it")
        number = self.exponent if isinstance(self.exponent, (int, float)) else -1
        _require(self.exponent == "auto" or number >= 0, "exponent", self.exponent, "p ≥ 0 or 'auto'")
        _require(self.seed >= 0, "seed", self.seed, "0 or more")
        _require(self.amplitude is None or self.amplitude > 0, "amplitude", self.amplitude, "a positive number")
        _require(self.basis_memory is None or self.basis_memory > 0, "basis_memory", self.basis_memory, "positive")
        _require(0 < self.tolerance < 1, "tolerance", self.tolerance, "a number between 0 and 1")
        fractions = ("rollback_sigma", "rollback_drop", "budget") + ("max_drop",) * (self.max_drop is not None)
        for name in fractions:
            _require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "a fraction between 0 and 1")
        if self.lanczos_steps is not None and self.spikes is not None:
            enough = self.lanczos_steps >= self.spikes
            _require(enough, "lanczos_steps", self.lanczos_steps, f"at least as many as spikes ({self.spikes})")

    @property
    def uses_spikes(self) -> bool:
        """Whether an operation needs the Hessian."""
        return self.algorithm == "loop" or self.directions != "class-gradients"

    @property
    def uses_gradients(self) -> bool:
        """Whether an operation moves along class gradients."""
        return self.algorithm == "planned" and self.directions != "spikes"

    def as_loop(self) -> "SurgeryConfig":
        """The same choices for Algorithm 2."""
        if self.algorithm == "loop":
            return self
        return replace(self, algorithm="loop", iterations=LOOP_ITERATIONS)

    def as_planned(self, budget: float) -> "SurgeryConfig":
        """The default operation of the same weights, with the same seed, at a budget of accuracy."""
        usual = SurgeryConfig(budget=budget, parameters=self.parameters, batch_size=self.batch_size, seed=self.seed)
        return replace(usual, calibration_cap=self.calibration_cap)

    @property
    def rounds(self) -> int:
        """Iterations in all phases together."""
        return self.phases * self.iterations

    def spike_count(self, classes: int) -> int:
        """K for so many classes: as given, or C − 1."""
        return self.spikes or max(1, classes - 1)

    def as_dict(self) -> dict[str, Any]:
        """The form that `config.json` holds."""
        return asdict(self) | {"protect": list(self.protect)}

    @staticmethod
    def loop(**choices: Any) -> "SurgeryConfig":
        """Algorithm 2 with our settings: converged spikes, γ-decay, the best iterate."""
        usual: dict[str, Any] = {"algorithm": "loop", "iterations": LOOP_ITERATIONS}
        return SurgeryConfig(**(usual | choices))

    @staticmethod
    def paper(
        dataset: PaperDataset = "cifar10", start: PaperStart = "ce", control: Control = "adam", seed: int = 0
    ) -> "SurgeryConfig":
        """The settings of the paper's experiments.

        Args:
            dataset: whose experiment. "cifar100" is section 8's: 3 phases of 15 spikes and 3 iterations.
            start: how the model was trained (ISIC only): cross-entropy, focal or class-balanced loss.
            control: Adam-style control with T=15 on CIFAR-10 (table 7), or γ-decay with T=10 (tables 4 and 5).
            seed: fixes every random draw.
        """
        _check_paper(dataset, start)
        as_written: dict[str, Any] = {
            "algorithm": "loop",
            "lanczos_steps": 10,
            "hessian_samples": 128,
            "amplitude": 0.02,
            "control": control,
            "reference": "previous",
            "returned": "last",
            "sensitivity": "differences",
            "seed": seed,
        }
        if dataset == "cifar10":
            own: dict[str, Any] = {"spikes": 9, "exponent": 2, "strong_above": 0.85}
            own["iterations"] = 15 if control == "adam" else 10
        elif dataset == "cifar100":
            own = {"spikes": 15, "lanczos_steps": 20, "iterations": 3, "amplitude": 0.029, "exponent": 1, "phases": 3}
        else:
            own = {
                "hessian_samples": 256,
                "iterations": 10,
                "exponent": 0.5,
                "bound": "box",
                "calibration_cap": 250,
            }
            own |= {
                "ce": {},
                "focal": {"loss": "focal", "hessian_samples": 64, "iterations": 20},
                "class-balanced": {"hessian_sampling": "stratified", "iterations": 5, "patience": 3},
            }[start]
        return SurgeryConfig(**(as_written | own))


def _check_paper(dataset: str, start: str) -> None:
    _require(dataset in get_args(PaperDataset), "dataset", dataset, f"one of {', '.join(get_args(PaperDataset))}")
    _require(start in get_args(PaperStart), "start", start, f"one of {', '.join(get_args(PaperStart))}")
    _require(start == "ce" or dataset == "isic", "start", start, f"'ce' on {dataset}: only isic has others")


def _check_at_least_one(config: SurgeryConfig) -> None:
    needed = ("iterations", "phases", "hessian_samples", "batch_size")
    optional = ("spikes", "lanczos_steps", "micro_batch", "patience", "calibration_cap")
    for name in needed + optional:
        value = getattr(config, name)
        _require(value is None if name in optional and value is None else value >= 1, name, value, "at least 1")


def _check_choices(config: SurgeryConfig) -> None:
    choices = {
        "algorithm": Algorithm,
        "directions": Family,
        "hessian_sampling": Sampling,
        "basis": BasisPlace,
        "precision": BasisPrecision,
        "loss": LossName,
        "control": Control,
        "bound": Bound,
        "target": Target,
        "reference": Reference,
        "returned": Returned,
        "sensitivity": Sensing,
    }
    for name, literal in choices.items():
        value = getattr(config, name)
        _require(value in get_args(literal), name, value, f"one of {', '.join(get_args(literal))}")


def _require(holds: bool, name: str, value: object, needed: str) -> None:
    if not holds:
        raise InputError(f"{name}: got {value!r}; it must be {needed}")
