"""Table 6: a walk that keeps off the spikes, and two controls that the paper lacks."""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hessian_surgery.paper.presets import paper_config
from hessian_surgery.report.figure_style import BLUE, GREY, VERMILION, new_figure
from hessian_surgery.reproduce.item import Item, Measured
from hessian_surgery.reproduce.row import Row, claim_row, shown_row
from hessian_surgery.reproduce.workbench import Workbench
from hessian_surgery.studies.bulk_walk import Route, Walk, walk
from hessian_surgery.studies.study_inputs import open_calibration_data, open_finder
from hessian_surgery.studies.walk_direction import Kind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Table 6, at the start and after 20 steps of 0.1. A few steps inside the spikes' span are enough:
# more would take the network's loss out of the range of numbers.
STEPS: dict[Kind, int] = {"bulk": 20, "spike": 5, "random": 20}
LENGTH = 0.1
WALL = 0.5
LOSS = (0.5295, 0.5293)
ACCURACY = (84.98, 84.96)
LAMBDA_MAX = (645.4, 636.4)
ALIGNMENT = 0.9999
RELATIVE = 2.0
# Of classes, in percentage points; and of the loss, in nats.
CLASS_CHANGE = 0.2
LOSS_CHANGE = 0.001
OTHER = "another network"


def measure(bench: Workbench, split: int) -> Measured:
    """The three walks on the calibration half of the test images."""
    parts = bench.parts(split)
    model = bench.model()
    finder = open_finder(model, parts.training, paper_config().search, "*", split)
    data = open_calibration_data(model, parts.calibration)
    routes = [Route(kind, bench.number(steps, 2), LENGTH, WALL) for kind, steps in STEPS.items()]
    return {route.kind: _track(walk(finder, data, route)) for route in routes}


def _track(walked: Walk) -> dict[str, Any]:
    """What is measured at each point of a walk; changes of classes are in percentage points."""
    points = walked.points
    return {
        "displacement": [point.displacement for point in points],
        "relative_displacement": points[-1].relative_displacement,
        "loss": [point.loss for point in points],
        "accuracy": [100 * point.accuracy for point in points],
        "lambda_max": [point.lambda_max for point in points],
        "class_change": [100 * max(map(abs, changes)) for changes in walked.class_changes()],
        "alignment": min(point.bulk_alignment or 0.0 for point in points[1:]),
        "alignment_after": min(point.bulk_alignment_after or 0.0 for point in points[1:]),
        "walls": walked.walls,
    }


def rows(measured: dict[str, Sequence[Measured]]) -> list[Row]:
    """Table 6, what it is said to show, and what its controls show."""
    found = measured["cifar10"]
    bulk = [one["bulk"] for one in found]
    table = [
        shown_row(f"{label}, {when}", unit, paper[place], [walk[name][place] for walk in bulk], OTHER)
        for label, name, unit, paper in (
            ("loss", "loss", "", LOSS),
            ("accuracy", "accuracy", "%", ACCURACY),
            ("λ_max", "lambda_max", "", LAMBDA_MAX),
        )
        for place, when in ((0, "start"), (-1, "end"))
    ]
    displaced = [walk["displacement"][-1] for walk in bulk]
    return [
        *table,
        shown_row("displacement ‖θ − θ₀‖", "", 2.0, displaced, "set by the protocol: 20 steps of 0.1"),
        *_claims(bulk),
        *_controls(found),
    ]


def _claims(bulk: Sequence[dict[str, Any]]) -> list[Row]:
    changed = [walk["loss"][-1] - walk["loss"][0] for walk in bulk]
    classes = [max(walk["class_change"]) for walk in bulk]
    missing = [1e4 * (1 - walk["alignment"]) for walk in bulk]
    relative = [walk["relative_displacement"] for walk in bulk]
    return [
        claim_row(
            "change of the loss, bulk walk",
            "",
            LOSS[1] - LOSS[0],
            changed,
            max(map(abs, changed)) < LOSS_CHANGE,
            "the loss changes by less than 0.001, on every split",
        ),
        claim_row(
            "largest change of a class on the way, bulk walk",
            "pp",
            CLASS_CHANGE,
            classes,
            max(classes) <= CLASS_CHANGE + 1e-9,
            "no class changes by more than 0.2 pp, on every split",
        ),
        claim_row(
            "what is missing from ⟨d, bulk⟩ = 1 at most",
            "10⁻⁴",
            1e4 * (1 - ALIGNMENT),
            missing,
            min(walk["alignment"] for walk in bulk) >= ALIGNMENT,
            "⟨d, bulk⟩ is 0.9999 or more before each step, on every split",
        ),
        claim_row(
            "relative displacement ‖θ − θ₀‖ / ‖θ₀‖",
            "",
            RELATIVE,
            relative,
            min(relative) >= 0.95 * RELATIVE,
            "the network moves by twice its own length: 1.9 or more, on every split",
        ),
    ]


def _controls(found: Sequence[Measured]) -> list[Row]:
    largest = {kind: [max(one[kind]["class_change"]) for one in found] for kind in ("bulk", "spike", "random")}
    drifted = [one["random"]["loss"][-1] - one["random"]["loss"][0] for one in found]
    return [
        claim_row(
            "change of the loss, random walk of the same length",
            "",
            None,
            drifted,
            statistics.fmean(map(abs, drifted)) >= LOSS_CHANGE,
            "it is the spikes that a walk must keep off: a direction that is not kept off them "
            "changes the loss by 0.001 or more on average",
        ),
        claim_row(
            f"largest change of a class, {STEPS['spike']} steps inside the spikes' span",
            "pp",
            None,
            largest["spike"],
            all(inside > outside for inside, outside in zip(largest["spike"], largest["bulk"], strict=True)),
            "spikes carry the classes: a quarter of the steps inside their span changes a class by "
            "more than the bulk walk, on every split",
        ),
        shown_row("largest change of a class, random walk", "pp", None, largest["random"], "a control"),
        shown_row("walls inside the spikes' span", "", None, [one["spike"]["walls"] for one in found], "a control"),
    ]


def draw(measured: dict[str, Sequence[Measured]]) -> "Figure":
    """Draw loss and largest class change by displacement, one line for each split."""
    figure, (left, right) = new_figure(1, 2, size=(10, 4.4))
    # The random walk comes last and is dashed: it may lie on the bulk walk.
    for kind, colour, line in (("spike", VERMILION, "-"), ("bulk", BLUE, "-"), ("random", GREY, "--")):
        for i, one in enumerate(measured["cifar10"]):
            walk = one[kind]
            label = None if i else kind
            left.plot(walk["displacement"], walk["loss"], line, color=colour, linewidth=1, label=label)
            right.plot(walk["displacement"], walk["class_change"], line, color=colour, linewidth=1, label=label)
    left.set(title="Loss", ylabel="mean cross-entropy (nats)", yscale="log")
    right.set(title="The class that changes most", ylabel="change of accuracy (pp)")
    right.set_yscale("symlog", linthresh=1)
    for axes in (left, right):
        axes.set_xlabel("displacement ‖θ − θ₀‖")
        axes.legend(frameon=False, fontsize=9)
    return figure


ITEM = Item("bulk-walk", ("cifar10",), measure, rows, draw)
