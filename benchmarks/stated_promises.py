"""What an outcome says of targets and protected classes, and the models of its folds.

These are all that depends on the tool's version; the rest uses what every version has.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

import hessian_surgery as hs

# Rounding in comparisons of shares.
SLACK = 1e-9


def stated(outcome: hs.Outcome) -> list[tuple[str, str, bool]]:
    """Each promise as (`target` or `protected`, class, whether the outcome says that it is kept).

    An outcome without a list of promises says so by its calibration images alone: a target that
    these miss gets a warning.
    """
    listed: Any = getattr(outcome.findings, "promises", None)
    if listed is not None:
        return [(promise.kind, promise.name, bool(promise.kept)) for promise in listed]
    classes = outcome.findings.calibration.classes
    before, after = (dict(zip(classes, m.per_class, strict=True)) for m in outcome.findings.calibration.metrics())
    targets: dict[str, float] = dict(outcome.config.targets)
    limits = {name: before[name] - outcome.choices["max_drop"] for name in outcome.choices["protected"]}
    reached = [("target", name, after[name] >= least - SLACK) for name, least in targets.items()]
    return reached + [("protected", name, after[name] >= least - SLACK) for name, least in limits.items()]


class FoldWeights(hs.Observer):
    """Keeps the weights after each fold's last iteration.

    Attributes:
        weights: by the number of the fold, from 1; that of the delivered model is 0.
    """

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.number = 0
        self.weights: dict[int, dict[str, Tensor]] = {}

    def fold(self, number: int, total: int) -> None:
        """Take note that another fold begins."""
        self.number = number

    def iteration(self, record: hs.IterationRecord) -> None:
        """Copy the weights as they are now."""
        self.weights[self.number] = {name: value.clone() for name, value in self.net.state_dict().items()}

    def nets(self, outcome: hs.Outcome, images: hs.LabelledSet) -> list[nn.Module]:
        """The net of each fold in turn; it must give the answers that the outcome holds."""
        predicted = outcome.findings.heldout.after.predicted
        found = []
        for number in range(1, outcome.findings.folds + 1):
            net = copy_of(self.net, self.weights[number])
            mine = outcome.fold_of == number - 1
            with torch.no_grad():
                answers = net(images.inputs()[mine]).argmax(dim=1)
            assert (answers == predicted[mine]).float().mean() > 0.99, "these are not the weights of the fold"
            found.append(net)
        return found


def copy_of(net: nn.Module, weights: dict[str, Tensor]) -> nn.Module:
    """A copy of a net with other weights."""
    copied = copy.deepcopy(net)
    copied.load_state_dict(weights)
    return copied
