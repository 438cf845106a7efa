"""The report of the predictors study: sentences, Markdown tables and a scatter plot."""

from typing import TYPE_CHECKING

from hessian_surgery.comparison.figure import COLOURS, MARKS
from hessian_surgery.report.figure_files import plain_labels
from hessian_surgery.report.figure_style import GREY, new_figure
from hessian_surgery.report.markdown import plain
from hessian_surgery.studies.predictors import GAINS, PREDICTORS, Case, Estimate
from hessian_surgery.studies.rank_correlations import Predictors, RankCorrelation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Not drawn: p, which takes two values, and the fall in points, which follows σ itself.
DRAWN_PREDICTORS = tuple(name for name in PREDICTORS if name != "exponent")
DRAWN_GAINS = ("relative_fall", "ahead_of_bias")
# Fractions, which are shown in percent or percentage points.
FRACTIONS = ("sigma", "accuracy", *GAINS)
UNITS = {"sigma": " (pp)", "accuracy": " (%)", "fall": " (pp)", "relative_fall": " (%)", "ahead_of_bias": " (pp)"}
# Below this, a corrected p-value counts as more than chance.
LEVEL = 0.05
# With fewer models than this, the report warns that correlations may be missed.
FEW_MODELS = 40


def describe(result: Predictors) -> str:
    """Say what predicts each gain."""
    sentences = [f"{len(result.cases)} models, {result.method} at the headline budget."]
    for gain, label in GAINS.items():
        found = [r for r in result.relations if r.gain == gain and not r.within]
        if not found:
            sentences.append(f"Too few models, or too alike, to say what predicts '{label}'.")
            continue
        significant = sorted((r for r in found if r.p_holm < LEVEL), key=lambda r: -abs(r.rho))
        named = ", ".join(f"{PREDICTORS[r.predictor]} (ρ {r.rho:+.2f}{_within(result, r)})" for r in significant)
        share = result.reliability.get(gain)
        signal = "" if share is None else f"; {100 * share:.0f} % of its variance is more than measurement error"
        sentences.append(f"'{label}' is predicted beyond chance by {named or 'nothing'}{signal}.")
    if len(result.cases) < FEW_MODELS:
        sentences.append("There are few models, so the study may miss a correlation that exists.")
    return " ".join(sentences)


def to_markdown(result: Predictors) -> str:
    """List the models, then the correlations."""
    titles = [label + UNITS.get(name, "") for name, label in (PREDICTORS | GAINS).items()] + ["Δ accuracy (pp)"]
    lines = [f"Gains of {plain(result.method)}, ± standard error over images.", ""]
    lines += ["| model | images | " + " | ".join(titles) + " |", "|---|" + "---:|" * (len(titles) + 1)]
    lines += ["| " + " | ".join(_cells(case)) + " |" for case in result.cases]
    scopes = sorted({relation.within for relation in result.relations})
    columns = [(gain, within) for gain in GAINS for within in scopes]
    heads = [f"{GAINS[gain]}, {'within data sets' if within else 'all models'}" for gain, within in columns]
    lines += ["", "Spearman's ρ (p by permutation; bold if p is below 5 % after Holm's correction):", ""]
    lines += ["| predictor | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    for name, label in PREDICTORS.items():
        cells = [_correlation(_find(result, gain, name, within)) for gain, within in columns]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", plain(describe(result))]) + "\n"


def draw(result: Predictors) -> "Figure":
    """Draw the relative fall of σ (top) and the lead over class bias (bottom) by each predictor."""
    figure, axes = new_figure(len(DRAWN_GAINS), len(DRAWN_PREDICTORS), size=(17.0, 6.4))
    groups = list(dict.fromkeys(case.group for case in result.cases))
    places = ((gain, name) for gain in DRAWN_GAINS for name in DRAWN_PREDICTORS)
    for panel, (gain, name) in zip(axes, places, strict=True):
        for i, group in enumerate(groups):
            cases = [case for case in result.cases if case.group == group and gain in case.gains]
            _points(
                panel, cases, gain, name, COLOURS[i % len(COLOURS)], MARKS[i % len(MARKS)], plain_labels([group])[0]
            )
        found = _find(result, gain, name, within=False)
        panel.set_title(f"ρ {found.rho:+.2f}, p {found.p:.2g}" if found else "ρ –", fontsize=10)
        panel.axhline(0, color=GREY, linewidth=0.8)
        panel.set_xlabel(PREDICTORS[name] + UNITS.get(name, ""), fontsize=9)
        panel.set_ylabel(GAINS[gain] + UNITS[gain], fontsize=9)
        if name == "error_ratio" and any(gain in case.gains for case in result.cases):
            panel.set_xscale("log")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=len(groups), frameon=False)
    figure.suptitle(f"What predicts the gain of {result.method}? {len(result.cases)} models, held-out images")
    return figure


def _points(panel: "Axes", cases: list[Case], gain: str, name: str, colour: str, mark: str, label: str) -> None:
    x = [_shown(name, case.predictors[name]) for case in cases]
    found = [case.gains[gain] for case in cases]
    y = [100 * g.value for g in found]
    bars = [100 * (g.error or 0) for g in found]
    panel.errorbar(x, y, yerr=bars, fmt=mark, color=colour, ms=5, elinewidth=0.8, alpha=0.8, label=label)


def _find(result: Predictors, gain: str, predictor: str, within: bool) -> RankCorrelation | None:
    wanted = (gain, predictor, within)
    return next((r for r in result.relations if (r.gain, r.predictor, r.within) == wanted), None)


def _within(result: Predictors, relation: RankCorrelation) -> str:
    found = _find(result, relation.gain, relation.predictor, within=True)
    return f", within data sets {found.rho:+.2f}" if found else ""


def _correlation(relation: RankCorrelation | None) -> str:
    if relation is None:
        return "–"
    text = f"{relation.rho:+.2f} ({relation.p:.2g})"
    return f"**{text}**" if relation.p_holm < LEVEL else text


def _cells(case: Case) -> list[str]:
    known = [f"{_shown(name, case.predictors[name]):.{1 if name in FRACTIONS else 2}f}" for name in PREDICTORS]
    gains = [_gain(case.gains.get(gain)) for gain in GAINS]
    return [plain(case.name), f"{case.images:,}", *known, *gains, f"{100 * case.delta_accuracy:+.2f}"]


def _gain(found: Estimate | None) -> str:
    if found is None:
        return "–"
    return f"{100 * found.value:+.1f}" + ("" if found.error is None else f" ± {100 * found.error:.1f}")


def _shown(name: str, value: float) -> float:
    return 100 * value if name in FRACTIONS else value
