"""Item: how one table or figure of the paper is made again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from hessian_surgery.reproduce.row import Row
from hessian_surgery.reproduce.workbench import Workbench

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Dataset: TypeAlias = Literal["cifar10", "cifar100", "skin"]
# What one split gave, as JSON holds it.
Measured: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Item:
    """One table or figure.

    Attributes:
        name: as on the command line.
        datasets: what it runs on; each has a network of its own.
        measure: function from a workbench of one data set and a split to what that split gives. It
            depends on nothing else, so a run that was killed goes on with the next split.
        rows: function from what all splits gave, by data set, to the rows beside the paper.
        draw: likewise, to a figure; None if there is none.
        splits: how many are run by default; 1 for what no split changes.
        trains: whether it trains networks: several processes begin with its first split.
    """

    name: str
    datasets: tuple[Dataset, ...]
    measure: Callable[[Workbench, int], Measured]
    rows: Callable[[dict[str, Sequence[Measured]]], list[Row]]
    draw: "Callable[[dict[str, Sequence[Measured]]], Figure] | None" = None
    splits: int = 5
    trains: bool = False
