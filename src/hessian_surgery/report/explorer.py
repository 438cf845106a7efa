"""The explorer: see what other objectives and budgets are predicted to do, and copy a command."""

from collections.abc import Sequence
from typing import Any

from hessian_surgery.markup import copyable, embedded, name, text
from hessian_surgery.report import page_charts
from hessian_surgery.report.class_search import search_box, whole_parts
from hessian_surgery.report.deciles import group_name
from hessian_surgery.report.figure_data import weakest_first
from hessian_surgery.report.page import Section
from hessian_surgery.report.provenance import command_line, ran_as_command
from hessian_surgery.report.run import Run

WITHOUT_SCRIPTS = "<noscript><p>The explorer needs scripts.</p></noscript>"
OBJECTIVES = {"sigma": "σ, the spread of the classes", "worst": "the worst class"}
# Decimals of figures over all classes.
DIGITS = 4
# More classes than this stand in two columns.
TWO_COLUMNS = 24
# Of many classes, so many that gain and that lose are shown, and so many that a search finds.
MOST = 8
FOLLOWED = 5


def explorer(run: Run) -> Section:
    """Make the section, from the front that the operation predicted."""
    front = run.result["front"]
    data = explorer_data(run, front)
    first = data["objectives"][data["start"][0]][data["start"][1]]
    body = (
        "<p>What a single step is predicted to do to the held-out images, by cross-fitting on the calibration images. "
        "Bars are predicted accuracies, whiskers are 95 % bands, and vertical ticks show the model as it is; "
        '<span class="shield" aria-hidden="true">◆</span> marks protected classes.</p>'
        f"{_controls(data)}{_some_bars(run) if run.findings.many else _every_bar(run, front)}"
        f'<div class="pair"><div><h3>Run it</h3><p>In the folder where you ran the operation:</p>'
        f"{copyable(first['command'], 'explored')}{WITHOUT_SCRIPTS}</div>"
        f"<figure>{page_charts.predicted_front(data['objectives'], front['base'])}</figure></div>"
        + embedded(data, "front-data")
    )
    return Section("explore", "Explore other operations", body)


def _every_bar(run: Run, front: dict[str, Any]) -> str:
    order = weakest_first(front["base"]["per_class"])
    protected = set(front["protected"])
    rows = "".join(_row(run.classes[j], f'data-class="{j}"', j in protected) for j in order)
    kind = "bars many" if len(order) > TWO_COLUMNS else "bars"
    return f'<ul class="{kind}" id="bars" aria-label="Predicted accuracy of each class">{rows}</ul>'


def _some_bars(run: Run) -> str:
    """Rows for groups, for the classes that change most and for a search: a script fills them."""
    groups = run.findings.deciles
    grouped = "".join(
        _row(group_name(group, len(groups)), f'data-group="{i}"', band=False) for i, group in enumerate(groups)
    )

    def rows(place: str, label: str, count: int) -> str:
        empty = _row("", "hidden", True) * count
        return f'<ul class="bars" id="{place}" aria-label="{label}">{empty}</ul>'

    return (
        '<div id="bars" class="some"><h3>Ten groups of classes</h3><p class="note">'
        "Means over the classes of a group. The groups are formed on the calibration images, which the predictions "
        "come from too: on held-out images the first groups will be somewhat stronger and the last ones "
        "weaker, with or without a step. So they have no bands.</p>"
        f'<ul class="bars" aria-label="Predicted accuracy of each group">{grouped}</ul>'
        f"<h3>Classes predicted to gain most</h3>{rows('bars-up', 'Gain most', MOST)}"
        f'<p class="note" id="bars-up-none">None.</p><h3>Classes predicted to lose most</h3>'
        f'{rows("bars-down", "Lose most", MOST)}<p class="note" id="bars-down-none">None.</p>'
        f"{search_box('follow', 'Follow a class by its name')}{rows('bars-found', 'Classes found', FOLLOWED)}</div>"
    )


def _controls(data: dict[str, Any]) -> str:
    """Controls for objective and budget, and the predicted figures over all classes."""
    aim, place = data["start"]
    choices = "".join(
        f'<label><input type="radio" name="objective" value="{key}"{" checked" if key == aim else ""}> '
        f"{text(words)}</label>"
        for key, words in OBJECTIVES.items()
        if key in data["objectives"]
    )
    last = len(data["objectives"][aim]) - 1
    figures = {"accuracy": "Accuracy", "sigma": "σ", "worst": "Worst class"}
    predicted = "".join(f'<div><dt>{label}</dt><dd id="predicted-{key}"></dd></div>' for key, label in figures.items())
    return (
        f'<div class="controls"><fieldset><legend>Improve</legend>{choices}</fieldset><div class="slide">'
        '<label for="budget">Accuracy that may be given up: <output id="budget-value" for="budget"></output></label>'
        f'<input type="range" id="budget" min="0" step="1" max="{last}" value="{place}" aria-describedby="predicted">'
        f'</div><dl id="predicted">{predicted}</dl></div>'
    )


def explorer_data(run: Run, front: dict[str, Any]) -> dict[str, Any]:
    """Collect what the page's script needs: points by objective, and the one to start at.

    Class accuracies are in parts of `SCALE`.
    """
    groups = [group.members for group in run.findings.deciles]
    objectives = {
        key: [_point(run, point, groups) for point in front["points"] if point["objective"] == key]
        for key in OBJECTIVES
    }
    objectives = {key: found for key, found in objectives.items() if found}
    aim = run.config["target"] if run.config["target"] in objectives else next(iter(objectives))
    budgets = [point["budget"] for point in objectives[aim]]
    nearest = min(range(len(budgets)), key=lambda i: abs(budgets[i] - run.config["budget"]))
    base = front["base"]["per_class"]
    grouped = {"groups": _means(base, groups), "protected": front["protected"]} if groups else {}
    return {"start": [aim, nearest], "base": whole_parts(base), "objectives": objectives, **grouped}


def explored_command(run: Run, objective: str, budget: float) -> str:
    """Write the run's command with another objective, budget and folder, and one iteration."""
    chosen = {"target": objective, "budget": f"{budget:g}", "iterations": 1}
    options = run.config["inputs"]
    if not ran_as_command(options):
        aims = f'target="{objective}", targets={{}}, budget={budget:g}, iterations=1'
        return f"hs.operate(model, ..., config=dataclasses.replace(config, {aims}))"
    folder = f"{options.get('out', 'run')}-{objective}-{budget:g}"
    kept = {key: value for key, value in options.items() if key not in (*chosen, "out")}
    return command_line("operate", kept | chosen | {"out": folder})


def _point(run: Run, point: dict[str, Any], groups: Sequence[Sequence[int]]) -> dict[str, Any]:
    figures = {key: round(point[key], DIGITS) for key in ("accuracy", "sigma")}
    worst = round(min(point["per_class"]), DIGITS)
    command = explored_command(run, point["objective"], point["budget"])
    listed = {key: whole_parts(point[key]) for key in ("per_class", "low", "high")}
    grouped = {"groups": _means(point["per_class"], groups)} if groups else {}
    return {"budget": point["budget"], "worst": worst, "command": command, **figures, **listed, **grouped}


def _means(per_class: Sequence[float], groups: Sequence[Sequence[int]]) -> list[int]:
    """The mean accuracy of each group."""
    return whole_parts([sum(per_class[j] for j in members) / len(members) for members in groups])


def _row(title: str, attribute: str, shield: bool = False, band: bool = True) -> str:
    marked = ' <span class="shield" title="protected">◆<span class="hidden"> protected</span></span>' if shield else ""
    whisker = '<line class="band" y1="10" y2="10"/>' if band else ""
    return (
        f'<li {attribute}><span class="who">{name(title)}{marked}</span>'
        '<svg aria-hidden="true"><rect class="track" width="100%" height="12" y="4" rx="2"/>'
        f'<rect class="fill" height="12" y="4" rx="2" width="0"/>{whisker}'
        '<line class="tick" y1="1" y2="19"/></svg><span class="value"></span><small></small></li>'
    )
