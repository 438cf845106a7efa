"""Sequential deflated surgery (section 8): the spikes that a phase takes out of the Hessian."""

from dataclasses import replace
from itertools import chain

from torch import Tensor

from hessian_surgery.curvature.basis import Basis, Storage, orthonormal, project, subtract
from hessian_surgery.curvature.lanczos import Spectrum
from hessian_surgery.curvature.operators import Operator
from hessian_surgery.model.parameters import ParameterSpace


def accumulate(deflated: Tensor | None, spectrum: Spectrum) -> Tensor:
    """The vectors (k, p) of all phases so far, made orthonormal again (the paper's QR)."""
    space = spectrum.space
    earlier = () if deflated is None else tuple(deflated)
    storage = replace(spectrum.storage, rows=len(earlier) + len(spectrum))
    vectors = chain(earlier, (spectrum.vector(i) for i in range(len(spectrum))))  # one at a time
    return orthonormal(vectors, Basis(space.dimension, space.dtype, space.device, storage))


def keep(vectors: Tensor, space: ParameterSpace, storage: Storage) -> Tensor:
    """Vectors (k, p), stored as a basis with this storage stores its own."""
    basis = Basis(space.dimension, space.dtype, space.device, replace(storage, rows=len(vectors)))
    for vector in vectors:
        basis.append(vector)
    return basis.vectors()


def overlap(deflated: Tensor, spectrum: Spectrum) -> float:
    """max |⟨q, q'⟩| between the deflated vectors and a phase's own: 0 if all of these are new."""
    return max(float(project(deflated, spectrum.vector(i)).abs().max()) for i in range(len(spectrum)))


def staleness(operator: Operator, deflated: Tensor, count: int) -> float:
    """How stale the first deflated vectors are, since the weights moved.

    It is ‖(I − QᵀQ) H q‖ / ‖H q‖, root mean square over the first `count` rows of Q: 0 while they
    still span an invariant space of the Hessian, 1 if all their curvature has moved elsewhere.
    """
    leaked = total = 0.0
    for row in deflated[:count]:
        product = operator @ row.to(operator.device, operator.dtype)
        total += float(product.square().sum())
        subtract(deflated, project(deflated, product), product)
        leaked += float(product.square().sum())
    return float((leaked / total) ** 0.5) if total else 0.0
