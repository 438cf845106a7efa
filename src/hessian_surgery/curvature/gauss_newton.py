"""GaussNewton: the part of the Hessian that the loss's own curvature makes."""

import torch
from torch import Tensor

from hessian_surgery.curvature.batch_operator import BatchOperator, zeros
from hessian_surgery.curvature.operators import Product


class GaussNewton(BatchOperator):
    """The generalised Gauss–Newton matrix G = (1/n) Σ_s J_sᵀ (∇²ℓ_s) J_s over a batch.

    J_s (C, p) is the Jacobian of sample s's logits in the weights, and ∇²ℓ_s (C, C) the Hessian
    of its loss in the logits. G is positive semi-definite if the loss is convex in the logits. A
    resident product costs about 1.4 gradients. See `BatchOperator` for the arguments.

    Example:
        >>> hs.GaussNewton(model, hs.hessian_batch(train, 64)).shape
        (51, 51)
    """

    _transposed = True

    def _linearize(self, logits: Tensor, labels: Tensor, keep: bool) -> Product:
        space = self.space
        # Jᵀu is linear in u, so its derivative in u along v is J v.
        u = torch.zeros_like(logits, requires_grad=True)
        pulled = torch.autograd.grad(logits, space.parameters, u, create_graph=True, materialize_grads=True)
        used = [i for i, g in enumerate(pulled) if g.requires_grad]
        leaf = logits.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self._loss_of(leaf, labels), leaf, create_graph=True)

        def product(vector: Tensor) -> Tensor:
            if not used or not slope.requires_grad:
                return zeros(space)
            pieces = space.split(vector)
            (pushed,) = torch.autograd.grad([pulled[i] for i in used], u, [pieces[i] for i in used], retain_graph=True)
            (bent,) = torch.autograd.grad(slope, leaf, pushed, retain_graph=keep)
            back = torch.autograd.grad(logits, space.parameters, bent, retain_graph=keep, materialize_grads=True)
            return space.flatten(back)

        return product
