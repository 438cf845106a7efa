"""What a comparison is expected to do, stage by stage, timed by a short trial."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hessian_surgery.comparison.compared_model import OUTPUTS, SEEKING, ComparedModel, family_stage
from hessian_surgery.comparison.entries import OPERATIONS, WHOLE, Entry, family_of, wanted_count
from hessian_surgery.comparison.protocol import Protocol, Split
from hessian_surgery.curvature.lanczos import STEPS_PER_SPIKE
from hessian_surgery.directions.class_gradients import gradient_images
from hessian_surgery.directions.class_groups import count_groups
from hessian_surgery.operation.coefficient_fit import PRICES
from hessian_surgery.operation.config import OperationConfig, SurgeryConfig
from hessian_surgery.operation.cost import Cost, estimate_cost, try_operation
from hessian_surgery.operation.schedule import Expected
from hessian_surgery.operation.stage_seconds import GRADIENTS_PER_PRODUCT
from hessian_surgery.operation.trial import Trial
from hessian_surgery.paper.config import as_loop
from hessian_surgery.types import Progress

# What methods fit on a split, in evaluations of an operation's fits; measured on the digits. Others
# scan a list of candidates.
FITS = {"class-bias": 120, "vector-scaling": 140, "last-layer": 220, "one-step": 240, "one-step:spikes": 240}
FITS_ALONG = 120
SCAN = 2
# What the evidence of one row and split takes, in evaluations over all images.
EVIDENCE = 2
# The last stage.
EVIDENCE_STAGE = "evidence"


@dataclass(frozen=True)
class _Rates:
    """What a comparison's work takes.

    Attributes:
        model: what is compared.
        protocol: how.
        terms: the goal of all methods.
        split: the first split; the others are as large.
        trial: seconds of each kind of work, for one image.
    """

    model: ComparedModel
    protocol: Protocol
    terms: SurgeryConfig
    split: Split
    trial: Trial

    @property
    def over_all(self) -> float:
        """Seconds of a pass over all images."""
        return len(self.model.images) * self.trial.forward.seconds

    @property
    def over_half(self) -> float:
        """Seconds of a pass over the calibration images of a split."""
        return len(self.split.calibration) * self.trial.forward.seconds

    def cost(self, config: OperationConfig) -> Cost:
        """The cost of an operation on a split."""
        model = self.model
        data = model.images.subset(self.split.calibration)
        return estimate_cost(model.classifier, model.training_data, data, config, trial=self.trial)

    def method(self, name: str) -> float:
        """Seconds of a post-hoc method on a split."""
        evaluation = len(self.split.calibration) * self.trial.fit.seconds
        if family_of(name) is None:
            return FITS.get(name, SCAN) * evaluation
        measured = len(PRICES) * self.over_half + len(self.protocol.budgets) * self.over_all
        return FITS.get(name, FITS_ALONG) * evaluation + measured

    def whole(self, name: str) -> float:
        """Seconds of a whole operation on a split."""
        if name not in OPERATIONS:
            return (self.cost(as_loop(self.model.config)).seconds or 0.0) + self.over_all
        seconds = {stage.name: stage.seconds or 0.0 for stage in self.cost(self._operation(name)).stages}
        shared = sum(seconds.get(stage, 0.0) for stage in ("prepare", "spikes", "directions", "plan"))
        return shared + len(self.protocol.operation_budgets) * (seconds["measure"] + self.over_all)

    def _operation(self, name: str) -> SurgeryConfig:
        return replace(self.terms, directions=OPERATIONS[name])

    def training(self) -> float:
        """Seconds of a fine-tuning."""
        return self.protocol.epochs * len(self.model.training_data) * self.trial.gradient.seconds

    def family(self, name: str, methods: list[str]) -> list[Expected]:
        """The stages of finding a family of directions: as many as a method needs."""
        classes = len(self.model.images.classes)
        search = self.model.config.search
        default = search.count(classes) if name == "spikes" else count_groups(classes)
        count = max(wanted_count(method) or default for method in methods if family_of(method) == name)
        training = self.model.training_data
        slopes = count * len(self.model.images) * self.trial.slope.seconds
        if name == "class-gradients":
            slopes += len(gradient_images(training)) * self.trial.gradient.seconds
        found = [Expected(family_stage(name), slopes)]
        if name != "spikes":
            return found
        images = min(search.hessian_samples, len(training))
        products = search.lanczos_steps or STEPS_PER_SPIKE * count
        return [Expected(SEEKING, products * GRADIENTS_PER_PRODUCT * images * self.trial.gradient.seconds), *found]


def expected_comparison(
    model: ComparedModel,
    protocol: Protocol,
    splits: list[Split],
    terms: SurgeryConfig,
    progress: Progress | None = None,
    done: Mapping[str, int] | None = None,
) -> list[Expected]:
    """The stages of `compare`, in order.

    Args:
        model: what is compared.
        protocol: how.
        splits: the splits.
        terms: the goal of all methods.
        progress: told of the trial.
        done: how many splits of an entry are done, by its name; None if none are.
    """
    trial = try_operation(model.classifier, model.images, terms, progress)
    rates = _Rates(model, protocol, terms, splits[0], trial)
    stages: list[Expected] = []
    for trunk in dict.fromkeys(entry.trunk for entry in protocol.entries):
        members = [entry for entry in protocol.entries if entry.trunk == trunk]
        if trunk:
            stages.append(Expected(trunk, rates.training()))
        stages.append(Expected(OUTPUTS, (2 if trunk else 3) * rates.over_all))
        methods = [name for entry in members for name in entry.methods]
        for family in dict.fromkeys(map(family_of, methods)):
            stages += [] if family is None else rates.family(family, methods)
        left = [len(splits) - (done or {}).get(entry.name, 0) for entry in members]
        stages += [Expected(e.name, _seconds(e, rates, count)) for e, count in zip(members, left, strict=True)]
    rows = len(protocol.entries) * len(protocol.budgets)
    evidence = EVIDENCE * rows * len(splits) * len(model.images) * trial.fit.seconds
    return [*stages, Expected(EVIDENCE_STAGE, evidence)]


def expected_from_outputs(protocol: Protocol) -> list[Expected]:
    """The stages of `compare_logits`, with shares of a time that is not known."""
    splits = protocol.splits
    fits = [Expected(e.name, splits * sum(FITS.get(name, SCAN) for name in e.methods)) for e in protocol.entries]
    rows = len(protocol.entries) * len(protocol.budgets)
    return [*fits, Expected(EVIDENCE_STAGE, EVIDENCE * rows * splits)]


def _seconds(entry: Entry, rates: _Rates, splits: int) -> float:
    """Seconds of an entry on so many splits; one that ends in a training has only the first."""
    fitted = sum(rates.whole(name) if name in WHOLE else rates.method(name) for name in entry.methods)
    return fitted + rates.training() + rates.over_all if entry.last else splits * fitted
