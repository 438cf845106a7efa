"""What an outcome says of targets and protected classes, and the models of its folds."""

import copy

import torch
from torch import Tensor, nn

import hessian_surgery as hs

# What the cases call each kind of promise; the budget is measured apart.
KINDS = {"target": "target", "limit": "protected"}


def stated(outcome: hs.Outcome) -> list[tuple[str, str, bool]]:
    """Each promise as (`target` or `protected`, class, whether the outcome says that it is kept).

    What cannot be told is not said to be kept.
    """
    return [
        (KINDS[promise.promise], promise.name, promise.state in ("reached", "kept"))
        for promise in outcome.findings.promises
        if promise.promise in KINDS and promise.name is not None
    ]


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
        assert outcome.fold_of is not None
        predicted = outcome.findings.heldout.after.predicted
        found = []
        for number in range(1, int(outcome.fold_of.max()) + 2):
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
