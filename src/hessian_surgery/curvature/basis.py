"""Basis: the orthonormal vectors of a Krylov subspace, stored as rows of blocks."""

import torch
from torch import Tensor

BLOCK_ROWS = 16


class Basis:
    """A growing set of vectors of length p, in blocks so that growing copies nothing.

    Projections are matrix-vector products: a loop over single vectors costs more than the Hessian product itself.
    """

    def __init__(self, dimension: int, dtype: torch.dtype, device: torch.device, expected: int = BLOCK_ROWS) -> None:
        self.dimension = dimension
        self._rows = min(BLOCK_ROWS, expected)
        self.dtype = dtype
        self.device = device
        self._blocks: list[Tensor] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, vector: Tensor) -> None:
        """Store a vector (p,)."""
        row = self._count % self._rows
        if row == 0:
            self._blocks.append(torch.empty(self._rows, self.dimension, dtype=self.dtype, device=self.device))
        self._blocks[-1][row] = vector
        self._count += 1

    def remove_from(self, vector: Tensor) -> Tensor:
        """Take the basis out of a vector in place, in two passes of Gram–Schmidt; returns the vector."""
        for _ in range(2):
            for block in self._used():
                vector.addmv_(block.T, block @ vector, alpha=-1)
        return vector

    def combine(self, coefficients: Tensor) -> Tensor:
        """Rows of coefficients (k, m) → vectors (k, p)."""
        coefficients = coefficients.to(self.device, self.dtype)
        result = torch.zeros(len(coefficients), self.dimension, dtype=self.dtype, device=self.device)
        start = 0
        for block in self._used():
            result.addmm_(coefficients[:, start : start + len(block)], block)
            start += len(block)
        return result

    def _used(self) -> list[Tensor]:
        filled = self._count - self._rows * (len(self._blocks) - 1)
        return [*self._blocks[:-1], self._blocks[-1][:filled]] if self._blocks else []
