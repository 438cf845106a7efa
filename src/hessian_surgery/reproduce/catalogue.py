"""The catalogue of all items, in the paper's order, without importing any of them."""

import importlib
from collections.abc import Sequence
from typing import NamedTuple

from hessian_surgery.errors import InputError
from hessian_surgery.reproduce.item import Item


class Entry(NamedTuple):
    """What is known of an item before it is imported.

    Attributes:
        paper: where it is in the paper.
        title: what it shows, in a few words.
    """

    paper: str
    title: str


CATALOGUE = {
    "baseline": Entry("table 1", "class accuracies of the starting network"),
    "eigenvalues": Entry("table 2", "the leading eigenvalues of the Hessian"),
    "spectrum": Entry("figure 1", "the density of all eigenvalues"),
    "sensitivity-matrix": Entry("figure 2", "how class accuracies respond to spikes"),
    "p-rule": Entry("table 3", "the exponent p that the rule recommends, against others"),
    "main": Entry("table 4", "class accuracies before and after surgery, γ-decay"),
    "iterations": Entry("table 5", "surgery iteration by iteration, γ-decay"),
    "bulk-walk": Entry("table 6", "walks off the spikes, inside their span, and at random"),
    "comparison": Entry("table 7", "surgery beside trainings and post-hoc methods on CIFAR-10"),
    "omega": Entry("table 8", "the exponent p of the class-error weights"),
    "bulk-finetune": Entry("table 9", "training after surgery"),
    "cifar100-phases": Entry("table 10", "deflated surgery on CIFAR-100, phase by phase"),
    "cifar100-classes": Entry("figure 3, table 11", "classes and deciles of CIFAR-100"),
    "summary": Entry("table 12", "surgery on three data sets"),
    "skin": Entry("table 13", "skin lesions: surgery, trainings and post-hoc methods"),
    "effective-rank": Entry("table 14", "the effective rank of S on three starts"),
    "stability": Entry("tables 15 to 18", "spikes by batch size, and Lanczos steps"),
    "box": Entry("appendix B", "a bound for each spike against one for all, on skin"),
    "adam-control": Entry("appendix C", "two controls of the amplitude"),
    "linearization": Entry("figures 4 and 5", "class accuracies along planned steps"),
    "all-99": Entry("future work", "deflated surgery on CIFAR-100 with all 99 spikes"),
}
NAMES = tuple(CATALOGUE)


def load_item(name: str) -> Item:
    """Import the item of this name."""
    module = importlib.import_module(f"hessian_surgery.reproduce.items.{name.replace('-', '_')}")
    item: Item = module.ITEM
    return item


def choose_items(names: Sequence[str]) -> list[Item]:
    """The items of these names, in the paper's order; `all` stands for all of them.

    Raises:
        InputError: a name is unknown.
    """
    for name in names:
        if name not in (*NAMES, "all"):
            raise InputError(f"names: got {name!r}; give all, or some of {', '.join(NAMES)}")
    return [load_item(name) for name in NAMES if "all" in names or name in names]
