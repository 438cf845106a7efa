"""Walks through weight space (sections 5.2 and 7.3).

Is the bulk inert, and is it more inert than any random direction?
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from torch import nn

from hessian_surgery.curvature.lanczos import Spectrum
from hessian_surgery.curvature.search import SpikeFinder, SpikeSearch
from hessian_surgery.data.labelled import Data, LabelledSet
from hessian_surgery.errors import require
from hessian_surgery.evidence.metrics import class_accuracy
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.evaluation import answer
from hessian_surgery.model.parameters import Snapshot
from hessian_surgery.plain_modes import in_plain_modes
from hessian_surgery.report.figure_style import BLUE, GREY, VERMILION, new_figure
from hessian_surgery.short_repr import short_repr
from hessian_surgery.studies.progress import part_of
from hessian_surgery.studies.study_inputs import SEARCH, open_calibration_data, open_finder
from hessian_surgery.studies.walk_direction import Kind, bulk_alignment, next_direction, norm
from hessian_surgery.type_check import require_types
from hessian_surgery.types import Progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS: dict[Kind, str] = {"bulk": BLUE, "spike": VERMILION, "random": GREY}


@dataclass(frozen=True)
class Point:
    """What is measured after a step of a walk; step 0 is the start.

    Attributes:
        step: steps taken.
        displacement: ‖θ_t − θ_0‖.
        relative_displacement: the displacement divided by ‖θ_0‖.
        loss: mean cross-entropy over the calibration images, in nats.
        accuracy: over all calibration images, a fraction.
        per_class: class accuracies (C).
        lambda_max: the largest eigenvalue at θ_t.
        bulk_alignment: ‖(I − QQᵀ)d‖, where d is the step's unit direction and Q are the spikes at
            θ_{t−1}, which d was adapted to; None at the start.
        bulk_alignment_after: the same with the spikes at θ_t, which d was not adapted to.
        wall: whether the walk gave up its direction before this step.
    """

    step: int
    displacement: float
    relative_displacement: float
    loss: float
    accuracy: float
    per_class: list[float]
    lambda_max: float
    bulk_alignment: float | None
    bulk_alignment_after: float | None
    wall: bool


@dataclass(frozen=True)
class Walk:
    """A walk of one kind.

    Attributes:
        kind: "bulk" keeps off the spikes, "spike" stays in their span, "random" ignores them.
        length: ε, the length of a step.
        wall: τ; see `Route`.
        spikes: K.
        parameters: p, the number of weights.
        start_norm: ‖θ_0‖.
        points: the start and one point per step.
    """

    kind: Kind
    length: float
    wall: float
    spikes: int
    parameters: int
    start_norm: float
    points: tuple[Point, ...]

    @property
    def walls(self) -> int:
        """How often the walk gave up its direction."""
        return sum(point.wall for point in self.points)

    def class_changes(self) -> list[list[float]]:
        """The change of each class's accuracy (C) since the start, at each point."""
        start = self.points[0].per_class
        return [[now - then for now, then in zip(point.per_class, start, strict=True)] for point in self.points]


@dataclass(frozen=True)
class BulkWalk:
    """The bulk walk beside its two controls.

    All three start from the same Gaussian vector and have the same step length.

    Example:
        >>> walked = hs.bulk_walk(model, train, calibration, hs.SpikeSearch(spikes=2), steps=2)
        >>> len(walked.bulk.points), len(walked.random.points)  # the start counts
        (3, 3)
    """

    bulk: Walk
    spike: Walk
    random: Walk

    __repr__ = short_repr

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Route:
    """Where a walk goes.

    Attributes:
        kind: see `Walk`.
        steps: the number of steps.
        length: ε, the length of a step.
        wall: τ. If adapting a direction to the present spikes leaves less of it than this, the walk
            gives it up and draws a new one.
    """

    kind: Kind
    steps: int
    length: float
    wall: float

    def __post_init__(self) -> None:
        require_types(self)
        require(self.kind in get_args(Kind), "kind", self.kind, f"one of {', '.join(get_args(Kind))}")
        require(self.steps >= 1, "steps", self.steps, "at least 1")
        require(self.length > 0, "length", self.length, "positive")
        require(0 <= self.wall < 1, "wall", self.wall, "at least 0 and below 1")


@in_plain_modes
def bulk_walk(
    model: nn.Module | Classifier,
    training_data: Data,
    calibration_data: Data,
    search: SpikeSearch = SEARCH,
    *,
    steps: int = 20,
    length: float = 0.1,
    wall: float = 0.5,
    parameters: str = "*",
    seed: int = 0,
    progress: Progress | None = None,
) -> BulkWalk:
    """Take the bulk walk of section 7.3 and two controls, which the paper lacks.

    A walk inside the spikes' span shows what steps of the same length do there. A walk along a
    Gaussian vector that is not projected shows whether the projection matters: if p ≫ K, a random
    direction has √(1 − K/p) ≈ 1 of its length in the bulk anyway.

    Args:
        model: the trained classifier, θ_0; its weights come back bit for bit.
        training_data: images that the Hessian batch is drawn from.
        calibration_data: images that loss and accuracies are measured on.
        search: how spikes are sought at each step.
        steps: the number of steps of each walk.
        length: ε, the length of a step.
        wall: τ; see `Route`.
        parameters: glob over the weights that walks move and spikes are directions of.
        seed: fixes the batch, the start vector and the walks' directions.
        progress: called with (done, total) as Lanczos steps are taken.

    Example:
        >>> hs.bulk_walk(model, train, calibration, hs.SpikeSearch(spikes=2), steps=2)
        BulkWalk(bulk=Walk(…), spike=Walk(…), random=Walk(…))
    """
    routes = [Route(kind, steps, length, wall) for kind in COLOURS]
    finder = open_finder(model, training_data, search, parameters, seed)
    data = open_calibration_data(model, calibration_data)
    equal = [1] * len(routes)
    part_of(progress, 0, equal)(0, 1)
    walks = {route.kind: walk(finder, data, route, part_of(progress, i, equal)) for i, route in enumerate(routes)}
    return BulkWalk(**walks)


def walk(finder: SpikeFinder, data: LabelledSet, route: Route, progress: Progress | None = None) -> Walk:
    """Take one walk: many steps along one direction, which is adapted to the spikes at each step.

    The weights come back bit for bit.

    Args:
        finder: finds the spikes at the present weights.
        data: images that loss and accuracies are measured on.
        route: where to go.
        progress: called with (done, total) as Lanczos steps are taken.
    """
    with finder.space.keeping_weights() as start:
        points = tuple(_take_steps(finder, data, route, start, progress))
    return Walk(
        kind=route.kind,
        length=route.length,
        wall=route.wall,
        spikes=finder.count,
        parameters=finder.space.dimension,
        start_norm=norm(start),
        points=points,
    )


def _take_steps(
    finder: SpikeFinder, data: LabelledSet, route: Route, start: Snapshot, progress: Progress | None
) -> Iterator[Point]:
    """Measure at the start and after each step; moves the weights."""
    parts = [1] * (route.steps + 1)
    spectrum = finder.find(progress=part_of(progress, 0, parts))
    yield _measure(finder, data, start, spectrum)
    chosen = None
    for step in range(1, len(parts)):
        chosen = next_direction(route.kind, chosen, spectrum, route.wall, finder.seed)
        finder.space.perturb(chosen.direction, route.length)
        before = bulk_alignment(chosen.direction, spectrum)
        spectrum = finder.find(progress=part_of(progress, step, parts))
        after = bulk_alignment(chosen.direction, spectrum)
        point = _measure(finder, data, start, spectrum)
        yield replace(point, step=step, bulk_alignment=before, bulk_alignment_after=after, wall=chosen.wall)
    part_of(progress, route.steps, parts)(1, 1)


def _measure(finder: SpikeFinder, data: LabelledSet, start: Snapshot, spectrum: Spectrum) -> Point:
    """Measure at the present weights; the step's own fields are those of the start."""
    answers = answer(finder.classifier, data)
    parameters = zip(finder.space.parameters, start, strict=True)
    displacement = norm([now.detach() - before for now, before in parameters])
    return Point(
        step=0,
        displacement=displacement,
        relative_displacement=displacement / norm(start),
        loss=float(answers.nll.double().mean()),
        accuracy=float((answers.predicted == data.labels).double().mean()),
        per_class=class_accuracy(answers.predicted, data.labels, len(data.classes)).tolist(),
        lambda_max=float(spectrum.eigenvalues[0]),
        bulk_alignment=None,
        bulk_alignment_after=None,
        wall=False,
    )


def describe(result: BulkWalk) -> str:
    """The main figures in a few sentences."""
    bulk = result.bulk
    end = bulk.points[-1]
    steps = bulk.points[1:]
    before = min(point.bulk_alignment or 0.0 for point in steps)
    after = min(point.bulk_alignment_after or 0.0 for point in steps)
    return (
        f"In the bulk, {len(steps)} steps of {bulk.length:g} reach ‖θ − θ₀‖ = {end.displacement:.3g}, which is "
        f"{100 * end.relative_displacement:.2g} % of ‖θ₀‖ = {bulk.start_norm:.3g}: {_changes(bulk)}, {_walls(bulk)}. "
        f"In a random direction, not kept off the spikes: {_changes(result.random)}. "
        f"Inside the spikes' span: {_changes(result.spike)}, {_walls(result.spike)}. "
        f"At least {before:.4f} of the bulk direction lay in the bulk before each step and at least {after:.4f} after "
        f"it; a random direction has {math.sqrt(1 - bulk.spikes / bulk.parameters):.4f}."
    )


def _changes(result: Walk) -> str:
    start = result.points[0]
    end = result.points[-1]
    largest = max(abs(change) for changes in result.class_changes() for change in changes)
    return (
        f"loss {start.loss:.4f} to {end.loss:.4f}, accuracy {100 * (end.accuracy - start.accuracy):+.2f} pp "
        f"(up to {100 * largest:.1f} pp for one class), "
        f"λ_max {start.lambda_max:.4g} to {end.lambda_max:.4g}"
    )


def _walls(result: Walk) -> str:
    return "1 wall" if result.walls == 1 else f"{result.walls} walls"


def draw(result: BulkWalk) -> "Figure":
    """Draw loss, accuracy, λ_max and the extreme class changes of each walk by displacement."""
    figure, (loss, accuracy, curvature, classes) = new_figure(2, 2, size=(9, 7))
    # The random walk comes last and is dashed: it lies on the bulk walk if the projection hardly
    # matters.
    for each, line in ((result.spike, "o-"), (result.bulk, "o-"), (result.random, "--")):
        x = [point.displacement for point in each.points]
        style: dict[str, Any] = {"color": COLOURS[each.kind], "markersize": 3.5, "label": each.kind}
        loss.plot(x, [point.loss for point in each.points], line, **style)
        accuracy.plot(x, [100 * point.accuracy for point in each.points], line, **style)
        curvature.plot(x, [point.lambda_max for point in each.points], line, **style)
        for extreme in (min, max):
            classes.plot(x, [100 * extreme(change) for change in each.class_changes()], line, **style)
    loss.set(title="Loss", ylabel="mean cross-entropy (nats)", yscale="log")
    accuracy.set(title="Accuracy", ylabel="%")
    curvature.set(title="Largest eigenvalue", ylabel="λ_max", yscale="log")
    classes.set(title="The classes that lose and gain most", ylabel="change of accuracy (pp)")
    # Classes change by tenths of a point in the bulk, and by up to a hundred points along spikes.
    classes.set_yscale("symlog", linthresh=1)
    for axes in (loss, accuracy, curvature, classes):
        axes.set_xlabel(f"displacement ‖θ − θ₀‖   (‖θ₀‖ = {result.bulk.start_norm:.3g})")
    loss.legend(frameon=False)
    return figure
