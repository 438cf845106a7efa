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
        rows: positions of items (R, ROW), each row of one group; m stands for none.
        row_of: positions of rows (G, T), by group; R stands for none.
    """

    owner: Tensor
    rows: Tensor
    row_of: Tensor

    def spread(self, values: Tensor) -> Tensor:
        """Give each item its group's value: (B, G) → (B, m)."""
        return values[:, self.owner]

    def collect(self, values: Tensor) -> Tensor:
        """Sum the values of each group's items: (B, m) → (B, G)."""
        return _sum_rows(_sum_rows(values, self.rows), self.row_of)


def make_groups(owner: Tensor, count: int) -> Groups:
    """Groups from the number of each item's group (m,), from 0 to count − 1."""
    order = owner.argsort(stable=True)
    return Groups(owner, *_rows(owner[order], order, count))


def _rows(sorted_owner: Tensor, order: Tensor, count: int) -> tuple[Tensor, Tensor]:
    device = order.device
    size = torch.bincount(sorted_owner, minlength=count)
    need = -(-size // ROW)
    first_row = need.cumsum(0) - need
    within = torch.arange(len(order), device=device) - (size.cumsum(0) - size)[sorted_owner]
    rows = torch.full((int(need.sum()), ROW), len(order), device=device)
    rows[first_row[sorted_owner] + within // ROW, within % ROW] = order
    table = torch.arange(max(1, int(need.max())), device=device).expand(count, -1)
    row_of = torch.where(table < need[:, None], first_row[:, None] + table, len(rows))
    return rows, row_of


def _sum_rows(values: Tensor, rows: Tensor) -> Tensor:
    """Sums (B, R) over the entries of values (B, m) that each row (R, T) names."""
    padded = torch.cat([values, values.new_zeros(len(values), 1)], dim=1)
    return padded[:, rows].sum(dim=2)
