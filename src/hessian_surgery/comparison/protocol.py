"""The protocol of a comparison: methods, splits and budgets."""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from hessian_surgery.comparison.entries import DEFAULT, Entry, parse_entry
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.data.splits import stratified_split
from hessian_surgery.errors import InputError
from hessian_surgery.short_repr import short_repr
from hessian_surgery.type_check import require_types

Part: TypeAlias = Literal["all", "development", "final"]

# Accuracy that may be given up; a method at a negative budget must gain as much.
BUDGETS = (-0.003, -0.001, 0.0, 0.002, 0.005, 0.01)
# The budget that the advice is about; chains that end in a training use it.
HEADLINE = 0.002


@dataclass(frozen=True)
class Split:
    """One split of the images, as positions.

    Attributes:
        calibration: images that methods may see (n,).
        heldout: images that methods are judged on (m,).
    """

    calibration: Tensor
    heldout: Tensor


@dataclass(frozen=True)
class Protocol:
    """How methods are compared.

    Attributes:
        methods: names of entries, as `parse_entry` takes them.
        splits: how many splits to make, each stratified by class.
        budgets: accuracy that may be given up, as fractions; if one is negative, accuracy must rise
            by as much.
        epochs: epochs of each training.
        seed: seed of the first split; the others follow it.
        part: which images to use. "all": each split halves all of them. The seed also divides the
            images into two fixed halves, one for development. "development": each split halves the
            development half, to choose settings on. "final": every split is judged on the other
            half, and its methods are fitted to another 80 % of the development half.

    Example:
        >>> hs.Protocol(methods=("class-bias", "operate"), splits=2)
        Protocol(methods=('class-bias', 'operate'), splits=2)
    """

    methods: tuple[str, ...] = DEFAULT
    splits: int = 5
    budgets: tuple[float, ...] = BUDGETS
    epochs: int = 15
    seed: int = 0
    part: Part = "all"

    __repr__ = short_repr

    def __post_init__(self) -> None:
        require_types(self)
        for name in ("splits", "epochs"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: got {getattr(self, name)}; it must be at least 1")
        if not self.budgets or not all(-1 < budget < 1 for budget in self.budgets):
            raise InputError(f"budgets: got {self.budgets}; give fractions of accuracy between -1 and 1")
        if len(set(self.budgets)) < len(self.budgets):
            raise InputError(f"budgets: got {self.budgets}; give each budget once")
        if self.part not in get_args(Part):
            raise InputError(f"part: got {self.part!r}; give one of {', '.join(get_args(Part))}")
        if self.seed < 0:
            raise InputError(f"seed: got {self.seed}; it must be 0 or more")
        _ = self.entries

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Return the entries; all are compared with the first two, `nothing` and `class-bias`."""
        every = [parse_entry(name) for name in ("nothing", "class-bias", *self.methods)]
        return tuple({entry.name: entry for entry in every}.values())

    @property
    def headline(self) -> float:
        """Return the budget closest to `HEADLINE`."""
        return min(self.budgets, key=lambda budget: abs(budget - HEADLINE))

    @property
    def operation_budgets(self) -> tuple[float, ...]:
        """Return the budgets that the default operation can have: those that are not negative."""
        return tuple(budget for budget in self.budgets if budget >= 0)

    def make_splits(self, images: LabelledSet) -> list[Split]:
        """Make the splits, the same for every method."""
        numbered = replace(images, index=torch.arange(len(images)))
        development, final = stratified_split(numbered, (0.5, 0.5), self.seed)
        if self.part == "final":
            drawn = [stratified_split(development, (0.8,), self.seed + i)[0] for i in range(self.splits)]
            return [Split(part.index, final.index) for part in drawn]
        if self.part == "development":
            numbered = development
        halves = [stratified_split(numbered, (0.5, 0.5), self.seed + i) for i in range(self.splits)]
        return [Split(calibration.index, heldout.index) for calibration, heldout in halves]
