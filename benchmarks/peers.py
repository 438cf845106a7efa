"""Other libraries that do the same jobs: a product, and the leading pairs to a residual."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Pairs:
    """Leading eigenpairs as a library gives them.

    Attributes:
        vectors: (k, p), in the order of `module.parameters()`.
        products: the number of products that they took.
    """

    vectors: Tensor
    products: int


@dataclass(frozen=True)
class Peer:
    """A library.

    Attributes:
        name: of the library.
        product: from a vector (p,) to H v.
        pairs: from k, a tolerance and the most products to k leading pairs.
    """

    name: str
    product: Callable[[Tensor], Tensor]
    pairs: Callable[[int, float, int], Pairs]


def pyhessian(net: nn.Module, batch: Batch) -> Peer:
    """PyHessian: power iteration for one pair after another, on a graph that it keeps."""
    from pyhessian import hessian
    from pyhessian.utils import hessian_vector_product

    made = hessian(net, nn.functional.cross_entropy, data=batch, cuda=False)
    parameters = list(net.parameters())

    def product(vector: Tensor) -> Tensor:
        pieces = [v.view_as(p) for v, p in zip(vector.split([p.numel() for p in parameters]), parameters, strict=True)]
        return torch.cat([h.reshape(-1) for h in hessian_vector_product(made.gradsH, made.params, pieces)])

    def pairs(k: int, tolerance: float, limit: int) -> Pairs:
        # Its tolerance is on the change of an eigenvalue from step to step, not on a residual. So
        # it takes all the steps.
        _, vectors = hessian(net, nn.functional.cross_entropy, data=batch, cuda=False).eigenvalues(
            maxIter=max(1, limit // k), tol=0.0, top_n=k
        )
        flat = torch.stack([torch.cat([piece.reshape(-1) for piece in vector]) for vector in vectors])
        return Pairs(flat, k * max(1, limit // k))

    return Peer("PyHessian", product, pairs)


def curvlinops(net: nn.Module, batch: Batch) -> Peer:
    """curvlinops with SciPy's ARPACK."""
    import numpy as np
    from curvlinops import HessianLinearOperator
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    operator = HessianLinearOperator(
        net.eval(), nn.CrossEntropyLoss(), list(net.parameters()), [batch], check_deterministic=False
    )
    scipy = operator.to_scipy()

    def pairs(k: int, tolerance: float, limit: int) -> Pairs:
        counted = 0

        def count(vector: "np.ndarray") -> "np.ndarray":
            nonlocal counted
            counted += 1
            return scipy @ vector

        counting = LinearOperator(scipy.shape, matvec=count, dtype=np.float32)
        start = np.random.default_rng(0).standard_normal(scipy.shape[0]).astype(np.float32)
        try:
            _, vectors = eigsh(counting, k=k, which="LA", tol=tolerance, v0=start, maxiter=limit)
        except ArpackNoConvergence as failure:
            vectors = failure.eigenvectors
        return Pairs(torch.from_numpy(vectors.T[::-1].copy()).float(), counted)

    return Peer("curvlinops + ARPACK", lambda vector: operator @ vector, pairs)


PEERS = (curvlinops, pyhessian)
