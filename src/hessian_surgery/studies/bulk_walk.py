"""Walks through weight space: is the bulk inert, and is that more than any random direction is? (5.2, 7.3)"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from torch import nn

from hessian_surgery.curvature.lanczos import Spectrum
from hessian_surgery.curvature.search import SpikeFinder, SpikeSearch
from hessian_surgery.data.labelled import Data, LabelledSet
from hessian_surgery.errors import InputError
from hessian_surgery.evidence.metrics import class_accuracy
from hessian_surgery.model.classifier import Classifier
from hessian_surgery.model.evaluation import answer
from hessian_surgery.model.parameters import Snapshot
from hessian_surgery.report.figure_style import BLUE, GREY, VERMILION, new_figure
from hessian_surgery.studies.heading import Kind, bulk_alignment, norm, turn
from hessian_surgery.studies.setting import SEARCH, open_finder, open_measured, part_of
from hessian_surgery.types import Progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS: dict[Kind, str] = {"bulk": BLUE, "spike": VERMILION, "random": GREY}


@dataclass(frozen=True)
class Point:
    """Where a walk stands after a step; step 0 is the start.

    Attributes:
        step: steps taken.
        displacement: ‖θ_t − θ_0‖.
        relative_displacement: the same over ‖θ_0‖.
        loss: mean cross-entropy over the measured images, in nats.
        accuracy: over all measured images, a fraction.
        per_class: class accuracies (C).
        lambda_max: the largest eigenvalue at θ_t.
        bulk_alignment: ‖(I − QQᵀ)d‖ of the step's unit direction d, Q being the spikes at θ_{t−1}, which d was made
            from; None at the start.
        bulk_alignment_after: the same with the spikes at θ_t, which d knew nothing of.
        wall: whether the former direction was given up before this step.
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
        kind: "bulk" keeps off the spikes, "spike" stays in their span, "random" knows nothing of them.
        length: ε, the length of a step.
        wall: τ.
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
        """How often the direction was given up."""
        return sum(point.wall for point in self.points)

    def class_changes(self) -> list[list[float]]:
        """The change of each class's accuracy (C) since the start, at each point."""
        start = self.points[0].per_class
        return [[now - then for now, then in zip(point.per_class, start, strict=True)] for point in self.points]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class BulkWalk:
    """The bulk walk beside its controls, all three from the same Gaussian vector and with the same step length."""

    bulk: Walk
    spike: Walk
    random: Walk

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Route:
    """How a walk goes; see `walk`."""

    kind: Kind
    steps: int
    length: float
    wall: float

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InputError(f"kind: got {self.kind!r}; give one of {', '.join(get_args(Kind))}")
        if self.steps < 1:
            raise InputError(f"steps: got {self.steps}; a walk takes at least one")
        if self.length <= 0:
            raise InputError(f"length: got {self.length}; a step's length must be positive")
        if not 0 <= self.wall < 1:
            raise InputError(
                f"wall: got {self.wall}; give the part of a direction that must be left, from 0 to below 1"
            )


def bulk_walk(
    model: nn.Module | Classifier,
    training_data: Data,
    measure_data: Data,
    search: SpikeSearch = SEARCH,
    *,
    parameters: str = "*",
    seed: int = 0,
    steps: int = 20,
    length: float = 0.1,
    wall: float = 0.5,
    progress: Progress | None = None,
) -> BulkWalk:
    """The bulk walk of section 7.3, and the two controls that the paper lacks; arguments as for `walk`.

    A walk inside the span of the spikes shows what the same length does there. A walk along an unprojected Gaussian
    vector shows whether the projection matters: at p ≫ K a random direction has √(1 − K/p) ≈ 1 of itself in the bulk.
    """
    routes = [_Route(kind, steps, length, wall) for kind in COLOURS]
    finder = open_finder(model, training_data, search, parameters, seed)
    data = open_measured(model, measure_data, "measure_data")
    walks = {route.kind: _go(finder, data, route, part_of(progress, i, len(routes))) for i, route in enumerate(routes)}
    return BulkWalk(**walks)


def walk(
    model: nn.Module | Classifier,
    training_data: Data,
    measure_data: Data,
    search: SpikeSearch = SEARCH,
    *,
    parameters: str = "*",
    seed: int = 0,
    kind: Kind = "bulk",
    steps: int = 20,
    length: float = 0.1,
    wall: float = 0.5,
    progress: Progress | None = None,
) -> Walk:
    """Step after step along one direction, adapted at each to the spikes there; then back, bit for bit.

    Args:
        model: the trained classifier, θ_0.
        training_data: what the Hessian batch is drawn from, once.
        measure_data: images that loss and accuracies are measured on.
        search: how spikes are sought, at each step.
        parameters: glob over the weights that spikes are directions of, such as `layer4.*`.
        seed: fixes the batch, the start vector and whatever else is drawn.
        kind: see `Walk`.
        steps: how many.
        length: ε.
        wall: τ: a direction of which the adaptation leaves less than this is given up, and a new one drawn.
        progress: called with (done, total) as Lanczos steps are taken.
    """
    route = _Route(kind, steps, length, wall)
    finder = open_finder(model, training_data, search, parameters, seed)
    data = open_measured(model, measure_data, "measure_data")
    return _go(finder, data, route, progress)


def _go(finder: SpikeFinder, data: LabelledSet, route: _Route, progress: Progress | None) -> Walk:
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
    finder: SpikeFinder, data: LabelledSet, route: _Route, start: Snapshot, progress: Progress | None
) -> Iterator[Point]:
    """The start and each point after it; moves the weights."""
    parts = route.steps + 1
    spectrum = finder.find(progress=part_of(progress, 0, parts))
    yield _look(finder, data, start, spectrum)
    heading = None
    for step in range(1, parts):
        heading = turn(route.kind, heading, spectrum, route.wall, finder.seed)
        finder.space.perturb(heading.direction, route.length)
        arrived = finder.find(progress=part_of(progress, step, parts))
        before, after = (bulk_alignment(heading.direction, spikes) for spikes in (spectrum, arrived))
        point = _look(finder, data, start, arrived)
        yield replace(point, step=step, bulk_alignment=before, bulk_alignment_after=after, wall=heading.wall)
        spectrum = arrived
    part_of(progress, route.steps, parts)(1, 1)


def _look(finder: SpikeFinder, data: LabelledSet, start: Snapshot, spectrum: Spectrum) -> Point:
    """What is measured at the present weights."""
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
    end, steps = bulk.points[-1], bulk.points[1:]
    before = min(point.bulk_alignment or 0.0 for point in steps)
    after = min(point.bulk_alignment_after or 0.0 for point in steps)
    return (
        f"{len(steps)} steps of {bulk.length:g} reach ‖θ − θ₀‖ = {end.displacement:.3g} in the bulk, "
        f"{100 * end.relative_displacement:.2g} % of ‖θ₀‖ = {bulk.start_norm:.3g}: {_changes(bulk)}, with {bulk.walls} "
        f"walls. A random direction, not kept off the spikes: {_changes(result.random)}. "
        f"Inside the spikes' span: {_changes(result.spike)}, with {result.spike.walls} walls. "
        f"At least {before:.4f} of the bulk direction lay in the bulk before a step and {after:.4f} after it; a random "
        f"direction has {math.sqrt(1 - bulk.spikes / bulk.parameters):.4f}."
    )


def _changes(result: Walk) -> str:
    start, end = result.points[0], result.points[-1]
    largest = max(abs(change) for changes in result.class_changes() for change in changes)
    return (
        f"loss {start.loss:.4f} to {end.loss:.4f}, accuracy {100 * (end.accuracy - start.accuracy):+.2f} pp, "
        f"a class by up to {100 * largest:.1f} pp, "
        f"λ_max {start.lambda_max:.4g} to {end.lambda_max:.4g}"
    )


def draw(result: BulkWalk) -> "Figure":
    """Loss, accuracy, λ_max and the spread of the classes' changes against the displacement, for the three walks."""
    figure, (loss, accuracy, curvature, classes) = new_figure(2, 2, size=(9, 7))
    # The random walk last and dashed: where the projection hardly matters it lies on the bulk walk.
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
    classes.set(title="The most hurt and the most helped class", ylabel="change of accuracy (pp)")
    classes.set_yscale("symlog", linthresh=1)  # tenths of a point in the bulk, a hundred points along spikes
    for axes in (loss, accuracy, curvature, classes):
        axes.set_xlabel(f"displacement ‖θ − θ₀‖   (‖θ₀‖ = {result.bulk.start_norm:.3g})")
    loss.legend(frameon=False)
    return figure
