"""The post-hoc rivals: each a function from the images it may see to candidate edits of the model.

All are fitted to the same objective, σ of the class accuracies at a price of accuracy, where they have something to
fit; the others are swept. Doing nothing is always a candidate.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.baselines.choice import unbeaten
from hessian_surgery.baselines.edits import Edit, LogitMap, Start, WeightStep
from hessian_surgery.baselines.last_layer import refit
from hessian_surgery.baselines.subject import Subject
from hessian_surgery.data.checks import require_images
from hessian_surgery.directions.family import Directions, join
from hessian_surgery.errors import InputError
from hessian_surgery.evidence.rates import Rates, logit_unit, rates
from hessian_surgery.operation.crossfit import Prospect, Surrogate
from hessian_surgery.operation.fit import candidates, fit_path
from hessian_surgery.operation.goal import make_goal, usual_drop, usual_threshold
from hessian_surgery.types import Array

TAUS = tuple(np.arange(0, 2.01, 0.25))
FINE_TAUS = tuple(np.round(np.arange(0, 2.01, 0.05), 2))
TEMPERATURES = (0.25, 0.5, 1.0, 2.0, 4.0)
# Of the steps along directions that a fit foresees, how many are measured, and how far below the floor they may seem.
MEASURED, MARGIN = 8, 0.02
# Budgets, from 0 to the deepest, that a planned step is made for.
PLANS = 11


@dataclass(frozen=True)
class Candidate:
    """An edit, how it does on the images that the choice is made on, and, if that had to be measured, where it leads.

    What costs nothing to compute again is not kept: there are hundreds of candidates.
    """

    edit: Edit
    rates: Rates
    end: Start | None = None


def temperature(subject: Subject, start: Start, chosen: Tensor) -> list[Candidate]:
    """Temperature scaling: z / T. No answer changes, so it is the control that must show no effect."""
    edits = [_map(subject, scale=torch.full((subject.logits.shape[1],), 1 / t)) for t in TEMPERATURES]
    return _seen(subject, start, chosen, edits)


def logit_adjustment(subject: Subject, start: Start, chosen: Tensor) -> list[Candidate]:
    """z − τ log π with the training set's class shares π (Menon et al. 2021), τ swept; on logits, not probabilities."""
    if subject.training_counts is None:
        raise InputError("logit adjustment needs the training set's class counts (training_counts)")
    counts = subject.training_counts.double()
    if (counts <= 0).any():
        raise InputError("logit adjustment: a class has no training image, so that its share is 0")
    known = -(counts / counts.sum()).log().cpu()
    # An output beyond the classes is moved like the most frequent one, so that equal shares change nothing.
    shift = torch.full((subject.logits.shape[1],), float(known.min()), dtype=torch.float64)
    shift[: len(counts)] = known
    return _seen(subject, start, chosen, [_map(subject, shift=tau * shift) for tau in FINE_TAUS])


def tau_norm(subject: Subject, start: Start, chosen: Tensor) -> list[Candidate]:
    """w_c ← w_c / ‖w_c‖^τ (Kang et al. 2020), τ swept, with the head's bias and without.

    Lengths count in units of their geometric mean, so that the logits keep their size.
    """
    if subject.head is None:
        raise InputError("τ-normalization needs a linear head, which this model does not have")
    weight, bias = subject.head.module.weight.detach().double().cpu(), subject.head.module.bias
    kept = torch.zeros(len(weight), dtype=torch.float64) if bias is None else bias.detach().double().cpu()
    size = weight.norm(dim=1)
    size = size / size.log().mean().exp()
    edits: list[LogitMap] = []
    for tau in TAUS:
        scale = size**-tau
        edits += [_map(subject, scale=scale, shift=share * kept - scale * kept) for share in (1.0, 0.0)]
    return _seen(subject, start, chosen, edits)


def class_bias(subject: Subject, start: Start, chosen: Tensor) -> list[Candidate]:
    """One number per class, added to its logit."""
    logits, labels = start.logits[chosen], subject.labels[chosen]
    unit = logit_unit(logits)
    path = fit_path(lambda c: logits + unit * c, logits.shape[1], labels, len(subject.classes))
    return _seen(subject, start, chosen, [_map(subject, shift=unit * torch.from_numpy(c)) for c in candidates(path)])


def vector_scaling(subject: Subject, start: Start, chosen: Tensor) -> list[Candidate]:
    """A scale and a bias per class (Guo et al. 2017)."""
    logits, labels = start.logits[chosen], subject.labels[chosen]
    outputs, unit = logits.shape[1], logit_unit(logits)

    def at(c: Tensor) -> Tensor:
        return logits * (1 + c[:outputs]) + unit * c[outputs:]

    path = fit_path(at, 2 * outputs, labels, len(subject.classes))
    pairs = [torch.from_numpy(c).split(outputs) for c in candidates(path)]
    return _seen(subject, start, chosen, [_map(subject, 1 + scale, unit * shift) for scale, shift in pairs])


def along(family: str, count: int | None = None) -> "Posthoc":
    """A step along the first `count` directions of a family; as many as the subject says by default.

    It is fitted to the directions' linear changes of the logits, and so are the steps that seem worth it; those are
    measured by forward passes, and the choice is among them.
    """

    def method(subject: Subject, start: Start, chosen: Tensor) -> list[Candidate]:
        directions = subject.family(family)
        linear = _surrogate(directions, subject, start, chosen, count or subject.counts.get(family))
        size, unused = len(linear.changes), len(directions) - len(linear.changes)
        steps = candidates(fit_path(linear.at, size, linear.labels, linear.classes))
        seen = [_rates(subject, linear.at(torch.from_numpy(c).to(linear.changes)), chosen) for c in steps]
        worth = [np.pad(steps[i], (0, unused)) for i in promising(seen, subject.deepest)]
        edits = [WeightStep(directions, c) for c in worth]
        ends = [start.after(edit, subject) for edit in edits]
        seen = [_rates(subject, end.logits[chosen], chosen) for end in ends]
        return [Candidate(*found) for found in zip(edits, seen, ends, strict=True)]

    return method


def planned(family: str) -> "Posthoc":
    """What `operate` does in its first round: a step along the head's biases and a family, chosen by cross-fitting.

    The rates of its candidates are those foreseen on images not fitted to, so that a budget holds elsewhere too. There
    is one candidate for each of some budgets.
    """

    def method(subject: Subject, start: Start, chosen: Tensor) -> list[Candidate]:
        families = [subject.family(family)]
        directions = join(families if subject.bias is None else [subject.bias, *families])
        surrogate = _surrogate(directions, subject, start, chosen)
        present = surrogate.rates()
        count = np.bincount(surrogate.labels.cpu().numpy(), minlength=surrogate.classes)
        require_images(surrogate.labels, subject.classes, "planned", at_least=2)
        strong, drop = present.per_class > usual_threshold(present.per_class), usual_drop(present.per_class, count)
        goal = make_goal(present, subject.classes, protected=strong, max_drop=drop)

        def look(coefficients: Array, positions: Tensor) -> Tensor:
            return start.looked_at(
                WeightStep(directions, coefficients), subject, chosen.to(positions.device)[positions]
            )

        prospect = Prospect(surrogate, goal, directions.exact, look)
        floors = present.accuracy - np.linspace(0, subject.deepest, PLANS)
        plans = [prospect.steps[0], *(prospect.choose(replace(goal, floor=floor)) for floor in floors)]
        return [Candidate(WeightStep(directions, plan.coefficients), plan.rates) for plan in plans]

    return method


def promising(found: list[Rates], deepest: float) -> list[int]:
    """Which candidates are worth a forward pass: the first, which does nothing, and a few that no other one beats in
    accuracy and σ both, of those that give up little more accuracy than `deepest`.
    """
    floor = found[0].accuracy - deepest - MARGIN
    points = np.array([(rate.accuracy, rate.sigma) for rate in found])
    front = [i for i in unbeaten(*points.T) if found[i].accuracy >= floor]
    picked = np.linspace(0, len(front) - 1, min(len(front), MEASURED)).round().astype(int)
    return list(dict.fromkeys([0, *(front[i] for i in picked)]))


def last_layer(subject: Subject, start: Start, chosen: Tensor) -> list[Candidate]:
    """The head fitted anew to the chosen images by class-balanced logistic regression (Kang et al. 2020)."""
    if subject.head is None or subject.features is None:
        raise InputError("a refit of the last layer needs a linear head, which this model does not have")
    found = refit(subject.head, subject.features[chosen], subject.labels[chosen], len(subject.classes))
    return [Candidate(edit, _rates(subject, logits, chosen)) for edit, logits in found]


Posthoc = Callable[[Subject, Start, Tensor], list[Candidate]]

POSTHOC: dict[str, Posthoc] = {
    "temperature": temperature,
    "logit-adjustment": logit_adjustment,
    "tau-norm": tau_norm,
    "class-bias": class_bias,
    "vector-scaling": vector_scaling,
    "last-layer": last_layer,
    "random": along("random"),
    "class-gradients": along("class-gradients"),
    "surgery": along("spikes"),
    "planned": planned("class-gradients"),
    "planned-spikes": planned("spikes"),
}
# What can be had from logits alone.
FROM_LOGITS = ("nothing", "temperature", "logit-adjustment", "class-bias", "vector-scaling")


def _map(subject: Subject, scale: Tensor | None = None, shift: Tensor | None = None) -> LogitMap:
    outputs, device = subject.logits.shape[1], subject.logits.device
    whole = torch.ones(outputs) if scale is None else scale
    none = torch.zeros(outputs) if shift is None else shift
    return LogitMap(whole.float().to(device), none.float().to(device))


def _seen(subject: Subject, start: Start, chosen: Tensor, maps: Sequence[LogitMap]) -> list[Candidate]:
    logits = start.logits[chosen]
    return [Candidate(edit, _rates(subject, edit(logits), chosen)) for edit in maps]


def _surrogate(
    directions: Directions, subject: Subject, start: Start, chosen: Tensor, count: int | None = None
) -> Surrogate:
    """The chosen images' logits as a linear function of the first coefficients, where the changes are kept."""
    device = directions.changes.device
    changes = directions.changes[:count, chosen.to(device)] * start.scale.to(device)
    labels = subject.labels[chosen].to(device)
    return Surrogate(start.logits[chosen].to(device), changes, labels, len(subject.classes))


def _rates(subject: Subject, logits: Tensor, chosen: Tensor) -> Rates:
    return rates(logits, subject.labels[chosen], len(subject.classes))
