"""The explorer: see what other objectives and budgets are predicted to do, and copy a command."""

from typing import Any

from hessian_surgery.report import page_charts
from hessian_surgery.report.figure_data import weakest_first
from hessian_surgery.report.markup import copyable, embedded, name, text
from hessian_surgery.report.page import Section
from hessian_surgery.report.provenance import command_line, ran_as_command
from hessian_surgery.report.run import Run

WITHOUT_SCRIPTS = "<noscript><p>The explorer needs scripts.</p></noscript>"
OBJECTIVES = {"sigma": "σ, the spread of the classes", "worst": "the worst class"}
# Decimals of fractions: finer than a pixel.
DIGITS = 4
# More classes than this stand in two columns.
MANY = 24


def explorer(run: Run) -> Section:
    """Make the section, from the front that the operation predicted."""
    front = run.result["front"]
    data = explorer_data(run, front)
    first = data["objectives"][data["start"][0]][data["start"][1]]
    order = weakest_first(front["base"]["per_class"])
    protected = set(front["protected"])
    rows = "".join(_row(j, run.classes[j], j in protected) for j in order)
    kind = "bars many" if len(order) > MANY else "bars"
    body = (
        "<p>What a single step is predicted to do to the held-out images, by cross-fitting on the calibration images. "
        "Bars are predicted accuracies, whiskers are 95 % bands, and vertical ticks show the model as it is; "
        '<span class="shield" aria-hidden="true">◆</span> marks protected classes.</p>'
        f'{_controls(data)}<ul class="{kind}" id="bars" aria-label="Predicted accuracy of each class">{rows}</ul>'
        f'<div class="pair"><div><h3>Run it</h3><p>In the folder where you ran the operation:</p>'
        f"{copyable(first['command'], 'explored')}{WITHOUT_SCRIPTS}</div>"
        f"<figure>{page_charts.predicted_front(data['objectives'], front['base'])}</figure></div>"
        + embedded(data, "front-data")
    )
    return Section("explore", "Explore other operations", body)


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
    """Collect what the page's script needs: points by objective, and the one to start at."""
    objectives = {
        key: [_point(run, point) for point in front["points"] if point["objective"] == key] for key in OBJECTIVES
    }
    objectives = {key: found for key, found in objectives.items() if found}
    aim = run.config["target"] if run.config["target"] in objectives else next(iter(objectives))
    budgets = [point["budget"] for point in objectives[aim]]
    nearest = min(range(len(budgets)), key=lambda i: abs(budgets[i] - run.config["budget"]))
    return {
        "start": [aim, nearest],
        "base": [round(value, DIGITS) for value in front["base"]["per_class"]],
        "objectives": objectives,
    }


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


def _point(run: Run, point: dict[str, Any]) -> dict[str, Any]:
    listed = {key: [round(value, DIGITS) for value in point[key]] for key in ("per_class", "low", "high")}
    figures = {key: round(point[key], DIGITS) for key in ("accuracy", "sigma")}
    worst = round(min(point["per_class"]), DIGITS)
    command = explored_command(run, point["objective"], point["budget"])
    return {"budget": point["budget"], "worst": worst, "command": command, **figures, **listed}


def _row(j: int, title: str, protected: bool) -> str:
    shield = (
        ' <span class="shield" title="protected">◆<span class="hidden"> protected</span></span>' if protected else ""
    )
    return (
        f'<li data-class="{j}"><span class="who">{name(title)}{shield}</span>'
        '<svg aria-hidden="true"><rect class="track" width="100%" height="12" y="4" rx="2"/>'
        '<rect class="fill" height="12" y="4" rx="2" width="0"/><line class="band" y1="10" y2="10"/>'
        '<line class="tick" y1="1" y2="19"/></svg><span class="value"></span><small></small></li>'
    )
