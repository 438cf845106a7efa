"""The forecast: what an operation would reach at least, from the logits of one forward pass.

The first rungs of the operation's ladder, a prior shift and class biases, need nothing but logits.
They are fitted, chosen and judged on data that they were not fitted to, as the operation does.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from hessian_surgery.data.checks import require_images
from hessian_surgery.evidence.asked import Asked
from hessian_surgery.evidence.noise_free_sigma import corrected_sigma, sigma_change
from hessian_surgery.evidence.resampled_pairs import ResampledPairs, count_pairs, resample_pairs
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.operation.gain import estimate_gain, is_worth_a_step
from hessian_surgery.operation.goal import Goal
from hessian_surgery.operation.ladder import climb
from hessian_surgery.operation.problem import Problem
from hessian_surgery.operation.proposal import operation_goal
from hessian_surgery.operation.protection import protection
from hessian_surgery.operation.recalibration import has_biases
from hessian_surgery.operation.surrogate import bias_maps
from hessian_surgery.seeding import numpy_generator
from hessian_surgery.types import Array

# Half of a 95 % interval, in standard errors. Both the images of the forecast and as many others,
# which it is compared with, are a sample: so √2.
WIDE = 1.96 * math.sqrt(2)


@dataclass(frozen=True)
class Expected:
    """A figure before and after, as fractions.

    Attributes:
        before: of the model as it is.
        after: as forecast.
        within: as many other images show a change within this of the forecast one, in 95 % of cases
            (or a better one).

    Example:
        >>> found = hs.diagnose(model, training_data=train, calibration_data=calibration)
        >>> found.forecast.sigma.after < found.forecast.sigma.before
        True
    """

    before: float
    after: float
    within: float

    def __str__(self) -> str:
        return f"{100 * self.before:.1f} → {100 * self.after:.1f} ± {100 * self.within:.1f}"


@dataclass(frozen=True)
class Forecast:
    """What an operation would reach at least, by class biases alone.

    Attributes:
        asked: goal, budget and limits.
        gains: whether class biases gain more than noise; if not, nothing is forecast to change.
        reachable: whether the operation may move biases of the head.
        sigma: σ without sampling noise.
        worst: the worst class's accuracy.
        accuracy: over all images.
        targets: accuracies of the classes that have a target, by name.

    Example:
        >>> found = hs.diagnose(model, training_data=train, calibration_data=calibration)
        >>> found.forecast.sigma.after < found.forecast.sigma.before
        True
    """

    asked: Asked
    gains: bool
    reachable: bool
    sigma: Expected
    worst: Expected
    accuracy: Expected
    targets: dict[str, Expected]

    @property
    def sentence(self) -> str:
        """The forecast in words."""
        budget = f"at a budget of {100 * (self.asked.budget or 0.0):.3g} pp"
        if not self.gains:
            return f"Forecast: class biases alone gain no more than noise {budget}; operate may leave the model as is."
        figures = {"sigma": f"σ {self.sigma} pp", "worst": f"worst class {self.worst} %"}
        first, second = figures if self.asked.aim == "sigma" else reversed(figures)
        named = [f"{name} {seen} % (wanted {100 * self.asked.targets[name]:g})" for name, seen in self.targets.items()]
        words = ", ".join([*named, figures[first], figures[second]])
        source = "from class biases alone, judged on data that they were not fitted to"
        if not self.reachable:
            return f"Forecast: class biases would do {words} {budget}, but this head has none that operate may move."
        short = any(seen.after < self.asked.targets[name] for name, seen in self.targets.items())
        refused = " operate refuses targets that no step is predicted to reach." if short else ""
        return f"Forecast: at least about {words} {budget} ({source}; other weights may add to it).{refused}"

    def as_dict(self) -> dict[str, Any]:
        """The form that `diagnosis.json` holds."""
        return asdict(self) | {"asked": self.asked.as_dict(), "sentence": self.sentence}


def make_forecast(problem: Problem[SurgeryConfig]) -> Forecast:
    """Forecast an operation from the logits that the problem holds."""
    data = problem.calibration_data
    config = problem.config
    require_images(data.labels, data.classes, "calibration_data", at_least=2)
    goal = operation_goal(problem)
    after, overstated = _predicted_answers(problem, goal)
    before = problem.started
    kinds = count_pairs(before, before if after is None else after, data.labels, len(data.classes))
    pairs = resample_pairs(kinds.astype(np.float64), numpy_generator(config.seed, "forecast"))
    flattered = "targets" if goal.targets else goal.aim
    worst = _expected(pairs, lambda rows: rows.min(axis=-1))
    accuracy = _expected(pairs, lambda rows: rows @ pairs.count / pairs.count.sum())
    # A score counts the mean shortfall of targets a hundred times.
    targets = {data.classes[j]: _of_class(pairs, goal, j, overstated / 100) for j in goal.targets}
    return Forecast(
        asked=Asked(config.target, config.budget, config.targets, protection(problem).limits(data.classes)),
        gains=after is not None,
        reachable=has_biases(problem),
        sigma=_expected_sigma(pairs, overstated if flattered == "sigma" else 0.0),
        worst=replace(worst, after=worst.after - (overstated if flattered == "worst" else 0.0)),
        accuracy=accuracy,
        targets=targets,
    )


def _predicted_answers(problem: Problem[SurgeryConfig], goal: Goal) -> tuple[Tensor | None, float]:
    """The answers (n,) after the best class biases, and how much their choice flatters the score.

    There are none if they gain no more than noise.
    """
    data = problem.calibration_data
    seed = problem.config.seed
    device = problem.space.device
    maps = bias_maps(problem.logits.to(device), data.labels.to(device), len(data.classes))
    candidates = climb(maps, goal, training_counts=problem.training_counts, seed=seed)
    chosen = candidates.choose(goal)
    answers = chosen.step.answers
    gain = estimate_gain(candidates.nothing.answers, answers, data.labels, goal, seed, chosen.overstated)
    return (answers, chosen.overstated) if is_worth_a_step(gain) else (None, 0.0)


def _expected(pairs: ResampledPairs, statistic: Callable[[Array], Array]) -> Expected:
    """A statistic of class accuracies (…, C), before and after."""
    spread = np.std(statistic(pairs.drawn_after) - statistic(pairs.drawn_before))
    return Expected(float(statistic(pairs.before)), float(statistic(pairs.after)), float(WIDE * spread))


def _expected_sigma(pairs: ResampledPairs, overstated: float) -> Expected:
    """σ without sampling noise, before and after."""
    change = sigma_change(pairs)
    before = float(corrected_sigma(pairs.before, pairs.count))
    within = math.sqrt(2) * (change.interval[1] - change.difference)
    return Expected(before, before + change.difference + overstated, within)


def _of_class(pairs: ResampledPairs, goal: Goal, number: int, overstated: float) -> Expected:
    """The accuracy of one class, less what is expected to be chance."""
    seen = _expected(pairs, lambda rows: rows[..., number])
    chance = float(goal.known_noise.expected[number])
    return replace(seen, before=seen.before - chance, after=seen.after - chance - overstated)
