"""Sums over groups of items, in the same order at every run.

A scattered sum is not: a GPU adds in whatever order its threads arrive. Here items are gathered
group by group, in rows of equal length, and rows are summed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

# Items in a row. Groups are filled up to whole rows.
ROW = 16


@dataclass(frozen=True)
class Groups:
    """Which of G groups each of m items belongs to.

    Attributes:
        owner: the group of each item (m,).
        levels: positions (R, ROW) of what each row sums: items in the first level, rows of the
            level before in the others. A row is of one group; a position beyond the last is none.
        last: the row of each group (G,) in the last level, which has one at most.
    """

    owner: Tensor
    levels: tuple[Tensor, ...]
    last: Tensor

    def spread(self, values: Tensor) -> Tensor:
        """Give each item its group's value: (B, G) → (B, m)."""
        return values[:, self.owner]

    def collect(self, values: Tensor) -> Tensor:
        """Sum the values of each group's items: (B, m) → (B, G)."""
        for rows in self.levels:
            values = _padded(values)[:, rows].sum(dim=2)
        return _padded(values)[:, self.last]


def make_groups(owner: Tensor, count: int) -> Groups:
    """Groups from the number of each item's group (m,), from 0 to count − 1."""
    levels: list[Tensor] = []
    above = owner
    while not levels or len(above) > len(above.unique()):
        rows, above = _make_rows(above, count)
        levels.append(rows)
    last = torch.full((count,), len(above), device=owner.device)
    last[above] = torch.arange(len(above), device=owner.device)
    return Groups(owner, tuple(levels), last)


def _make_rows(owner: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Rows (R, ROW) of items by group, and the group of each row (R,), from that of each item."""
    device = owner.device
    order = owner.argsort(stable=True)
    ordered = owner[order]
    size = torch.bincount(ordered, minlength=count)
    need = -(-size // ROW)
    within = torch.arange(len(order), device=device) - (size.cumsum(0) - size)[ordered]
    rows = torch.full((int(need.sum()), ROW), len(order), device=device)
    rows[(need.cumsum(0) - need)[ordered] + within // ROW, within % ROW] = order
    return rows, torch.repeat_interleave(torch.arange(count, device=device), need)


def _padded(values: Tensor) -> Tensor:
    """Values (B, m) with a 0 behind the last."""
    return torch.cat([values, values.new_zeros(len(values), 1)], dim=1)
