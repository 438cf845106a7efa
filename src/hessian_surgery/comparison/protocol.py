"""Protocol: which methods are compared, on how many splits, at which prices; the splits themselves."""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from hessian_surgery.comparison.entries import DEFAULT, Entry, parse_entry
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.data.splits import stratified_split
from hessian_surgery.errors import InputError

Part: TypeAlias = Literal["all", "development", "final"]

BUDGETS = (0.0, 0.002, 0.005, 0.01)
# The budget that the advice is about, and that a chain which ends in a training operates with.
HEADLINE = 0.002


@dataclass(frozen=True)
class Half:
    """One split: positions of the images that methods may see, and of those that they are judged on."""

    chosen: Tensor
    held: Tensor


@dataclass(frozen=True)
class Protocol:
    """How methods are compared.

    Attributes:
        methods: names of entries; `parse_entry` says what there is.
        splits: how often the images are halved anew, stratified.
        budgets: accuracy that may be given up on the calibration half, as fractions.
        epochs: of each training.
        seed: of the first split; the others follow.
        part: "all" halves all images anew for each split. "development" does so inside one half, fixed by the seed,
            where choices are made; "final" judges on the other half, with methods fitted to 80 % of the first, drawn
            anew for each split.
    """

    methods: tuple[str, ...] = DEFAULT
    splits: int = 5
    budgets: tuple[float, ...] = BUDGETS
    epochs: int = 15
    seed: int = 0
    part: Part = "all"

    def __post_init__(self) -> None:
        for name in ("splits", "epochs"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: got {getattr(self, name)}; at least 1 is needed")
        if not self.budgets or not all(0 <= budget < 1 for budget in self.budgets):
            raise InputError(f"budgets: got {self.budgets}; give shares of accuracy from 0 to below 1")
        if len(set(self.budgets)) < len(self.budgets):
            raise InputError(f"budgets: got {self.budgets}; give each once")
        if self.part not in get_args(Part):
            raise InputError(f"part: got {self.part!r}; give one of {', '.join(get_args(Part))}")
        if self.seed < 0:
            raise InputError(f"seed: got {self.seed}; it must be 0 or more")
        _ = self.entries

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries; `nothing` and class bias, which all are compared with, come first."""
        every = [parse_entry(name) for name in ("nothing", "class-bias", *self.methods)]
        return tuple({entry.name: entry for entry in every}.values())

    @property
    def headline(self) -> float:
        """The budget nearest to `HEADLINE`."""
        return min(self.budgets, key=lambda budget: abs(budget - HEADLINE))

    def halves(self, images: LabelledSet) -> list[Half]:
        """The splits, the same for every method."""
        numbered = replace(images, index=torch.arange(len(images)))
        development, final = stratified_split(numbered, (0.5, 0.5), self.seed)
        if self.part == "final":
            drawn = [stratified_split(development, (0.8,), self.seed + i)[0] for i in range(self.splits)]
            return [Half(part.index, final.index) for part in drawn]
        if self.part == "development":
            numbered = development
        parts = [stratified_split(numbered, (0.5, 0.5), self.seed + i) for i in range(self.splits)]
        return [Half(*(part.index for part in pair)) for pair in parts]
