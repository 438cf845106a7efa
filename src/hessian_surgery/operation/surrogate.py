"""The linear model of the logits that can win, as a function of the coefficients of a step."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from hessian_surgery.evidence.accuracies import Rates, answer_rates, logit_unit, rates
from hessian_surgery.evidence.class_noise import ClassNoise, class_noise
from hessian_surgery.evidence.group_sums import Groups, make_groups
from hessian_surgery.evidence.leading_outputs import leading_outputs
from hessian_surgery.operation.expected_gain import calibrated
from hessian_surgery.types import Array


@dataclass(frozen=True)
class Surrogate:
    """Logits of n images as a linear function of K coefficients.

    Coefficients come in this order: of scales (C), if there are any; of shifts (C), likewise; of
    directions. Scales and shifts change one logit of each image, in proportion to itself and by a
    constant. So nothing of size n is stored for them.

    Attributes:
        logits: those of the present weights (n, C).
        labels: true class of each image (n,).
        classes: how many classes there are.
        outputs: the L outputs of each image that are modelled (n, L), the true class first.
        changes: change of their logits per unit of each direction's coefficient (K', n, L).
        shifts: what a coefficient of 1 adds to each logit (C,); None if there are none of these.
        scales: what share of each logit it adds (C,), likewise.
        started: the class that the starting model predicted for each image (n,); None if the
            present weights are its own.
        moving: positions (m,) of the images that directions change; None for all.
    """

    logits: Tensor
    labels: Tensor
    classes: int
    outputs: Tensor
    changes: Tensor
    shifts: Tensor | None = None
    scales: Tensor | None = None
    started: Tensor | None = None
    moving: Tensor | None = None

    @property
    def exact(self) -> int:
        """How many coefficients, from the first, have an effect that is linear at any length."""
        return ((self.scales is not None) + (self.shifts is not None)) * self.logits.shape[1]

    @property
    def size(self) -> int:
        """How many coefficients there are, K."""
        return self.exact + len(self.changes)

    @cached_property
    def kept(self) -> Tensor:
        """The logits that are modelled (n, L)."""
        return self.logits.gather(1, self.outputs)

    @cached_property
    def groups(self) -> Groups:
        """The modelled logits (n · L), grouped by output."""
        return make_groups(self.outputs.flatten(), self.logits.shape[1])

    @cached_property
    def by_class(self) -> Groups:
        """The images, grouped by their true class."""
        return make_groups(self.labels, self.classes)

    def change(self, coefficients: Tensor) -> Tensor:
        """Change of the modelled logits (B, n, L) by B steps with coefficients (B, K)."""
        scale, shift = self._maps(coefficients)
        total = coefficients[:, self.exact :] @ self.changes.flatten(1)
        if scale is not None:
            total.addcmul_(self.groups.spread(scale), self.kept.flatten())
        if shift is not None:
            total.add_(self.groups.spread(shift))
        return total.view(-1, *self.outputs.shape)

    def at(self, coefficients: Tensor) -> Tensor:
        """Modelled logits (B, n, L) after B steps with coefficients (B, K)."""
        return self.change(coefficients).add_(self.kept)

    def pull_back(self, slopes: Tensor) -> Tensor:
        """Slopes along coefficients (B, K), from slopes along the modelled logits (B, n, L)."""
        flat = slopes.flatten(1)
        parts = []
        if self.scales is not None:
            parts.append(self.scales * self.groups.collect(flat * self.kept.flatten()))
        if self.shifts is not None:
            parts.append(self.shifts * self.groups.collect(flat))
        return torch.cat([*parts, flat @ self.changes.flatten(1).T], dim=1)

    def mapped(self, coefficients: Tensor, positions: Tensor) -> Tensor:
        """All logits (m, C) of some images, scaled and shifted by coefficients (1, K) or (m, K)."""
        scale, shift = self._maps(coefficients)
        logits = self.logits[positions]
        logits = logits if scale is None else logits + scale * logits
        return logits if shift is None else logits + shift

    def _maps(self, coefficients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The scales and shifts (B, C) of each logit, from coefficients (B, K)."""
        width = self.logits.shape[1]
        first = 0 if self.scales is None else width
        scale = None if self.scales is None else self.scales * coefficients[:, :width]
        shift = None if self.shifts is None else self.shifts * coefficients[:, first : first + width]
        return scale, shift

    @cached_property
    def rest(self) -> Tensor | None:
        """The largest logit of each image (n,) that is not modelled; None if all are."""
        every = self.outputs.shape[1] == self.logits.shape[1]
        return None if every else best_of_rest(self.logits, self.outputs)

    @cached_property
    def probabilities(self) -> Tensor:
        """Calibrated probabilities (n, C) of the present weights; fitted once."""
        return calibrated(self.logits, self.labels)

    def without_directions(self) -> "Surrogate":
        """The same with the coefficients that are linear at any length only."""
        return replace(self, changes=self.changes[:0])

    def rates(self) -> Rates:
        """The accuracies, overall and by class, of the present weights."""
        return rates(self.logits, self.labels, self.classes)

    def noise(self, positions: Tensor | None = None) -> ClassNoise:
        """The sampling noise in the class accuracies of the starting model on (some) images."""
        started = self.logits.argmax(dim=1) if self.started is None else self.started
        labels = self.labels
        if positions is not None:
            started, labels = started[positions], labels[positions]
        seen = answer_rates(started, labels, self.classes)
        return class_noise(seen.per_class, torch.bincount(labels, minlength=self.classes).cpu().numpy())


def logit_maps(
    logits: Tensor, labels: Tensor, classes: int, shifts: Tensor | None, scales: Tensor | None = None
) -> Surrogate:
    """The surrogate of scales and shifts alone, for logits (n, C) and labels (n,)."""
    outputs = leading_outputs(logits, labels)
    return Surrogate(logits, labels, classes, outputs, logits.new_zeros(0, *outputs.shape), shifts, scales)


def bias_maps(logits: Tensor, labels: Tensor, classes: int) -> Surrogate:
    """The surrogate of shifts alone; a coefficient of 1 moves all logits by `logit_unit`, rms."""
    unit = logit_unit(logits) * math.sqrt(logits.shape[1])
    return logit_maps(logits, labels, classes, torch.full_like(logits[0], unit))


def best_of_rest(logits: Tensor, outputs: Tensor) -> Tensor:
    """The largest of the logits (n, C) of each image (n,) beside those of `outputs` (n, L)."""
    return logits.scatter(1, outputs, -torch.inf).amax(dim=1)


def to_tensor(coefficients: Array, like: Tensor) -> Tensor:
    """Coefficients as a tensor of the dtype and on the device of `like`."""
    return torch.from_numpy(coefficients).to(like)
