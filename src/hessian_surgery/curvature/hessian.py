"""Hessian: the second derivative of a model's loss on a batch."""

import torch
from torch import Tensor

from hessian_surgery.curvature.batch_operator import BatchOperator, zeros
from hessian_surgery.curvature.operators import Product


class Hessian(BatchOperator):
    """H = ∇²L(θ), where L(θ) = (1/n) Σ_s ℓ(f_θ(x_s), y_s) is the mean loss over a batch (eq. 2).

    Products are exact: H v is the derivative of ⟨∇L(θ), v⟩ in θ. A resident product costs about
    two gradients. See `BatchOperator` for the arguments.

    Example:
        >>> hessian = hs.Hessian(model, hs.hessian_batch(train, 64))
        >>> (hessian @ torch.ones(51)).shape
        torch.Size([51])
    """

    def _linearize(self, logits: Tensor, labels: Tensor, keep: bool) -> Product:
        space = self.space
        gradient = torch.autograd.grad(
            self._loss_of(logits, labels), space.parameters, create_graph=True, materialize_grads=True
        )
        # A gradient that does not depend on the weights has no graph and adds nothing.
        used = [i for i, g in enumerate(gradient) if g.requires_grad]

        def product(vector: Tensor) -> Tensor:
            if not used:
                return zeros(space)
            pieces = space.split(vector)
            products = torch.autograd.grad(
                [gradient[i] for i in used],
                space.parameters,
                [pieces[i] for i in used],
                retain_graph=keep,
                materialize_grads=True,
            )
            return space.flatten(products)

        return product
