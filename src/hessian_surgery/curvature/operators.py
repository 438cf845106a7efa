"""Curvature operators: symmetric p × p matrices known by their products with vectors."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointError

from hessian_surgery.curvature.second_derivatives import cheap_second_derivatives
from hessian_surgery.data.batches import Inputs
from hessian_surgery.data.labelled import Data, as_labelled
from hessian_surgery.errors import InputError
from hessian_surgery.model.classifier import Classifier, as_classifier, deterministic_kernels
from hessian_surgery.model.losses import Loss, cross_entropy
from hessian_surgery.model.parameters import ParameterSpace, parameter_space
from hessian_surgery.recording import recordable, recorded

Product: TypeAlias = Callable[[Tensor], Tensor]


class Operator(Protocol):
    """A symmetric operator on vectors of length `space.dimension`."""

    @property
    def space(self) -> ParameterSpace:
        """The weights that the vectors are directions of."""

    def __call__(self, vector: Tensor) -> Tensor:
        """The product with a vector (p,): a new tensor, which the caller may change."""


class BatchOperator(ABC):
    """The curvature of the mean loss over a batch at the module's present weights.

    A resident batch keeps its autograd graph, so that a product costs one walk through that graph (on a GPU recorded
    once and replayed); with `micro_batch` the batch is streamed in parts whose graphs are rebuilt for each product, for
    up to twice the time and a fraction of the memory. The module must not be changed while a resident operator is in
    use: the next product then refuses.

    Args:
        model: a module or a `Classifier`; it is evaluated in eval mode and left as it was.
        data: the batch, in any form that `as_labelled` takes.
        space: the weights; all trainable ones by default.
        loss: of logits and labels, a mean over the samples.
        micro_batch: samples per part when streaming; None keeps the whole batch resident.
    """

    def __init__(
        self,
        model: nn.Module | Classifier,
        data: Data,
        space: ParameterSpace | None = None,
        loss: Loss = cross_entropy,
        micro_batch: int | None = None,
    ) -> None:
        self._classifier = as_classifier(model)
        self.space = space or parameter_space(self._classifier.module)
        self._data = as_labelled(data)
        self._loss = loss
        self._size = micro_batch or len(self._data)
        self._resident: Product | None = None
        self._plain = False
        self._versions = self._present_versions()
        if self._size >= len(self._data):
            with self._exact():
                with recordable(self.space.device):
                    product, _ = next(self._parts(keep=True))
                self._resident = recorded(product, _zeros(self.space))

    # Whether products differentiate gradients in the vector that is pulled back only.
    _transposed = False

    @abstractmethod
    def _linearize(self, logits: Tensor, labels: Tensor, keep: bool) -> Product:
        """The product for one part of the batch; `keep` if it will be called more than once.

        It must not refer to this operator: the cycle would keep activations until the garbage collector runs.
        """

    def __call__(self, vector: Tensor) -> Tensor:
        """The product with a vector (p,)."""
        if self._resident is not None:
            # A recorded product would go on with the old activations and the new weights.
            if self._versions != self._present_versions():
                raise RuntimeError(
                    "the module was modified by an inplace operation since this operator was made; make a new one"
                )
            # Checkpointed layers run again in the product, and must do so in evaluation mode.
            with self._exact() if self._plain else deterministic_kernels(exact=True):
                return self._resident(vector)
        total = _zeros(self.space)
        with self._exact():
            for product, weight in self._parts(keep=False):
                total.add_(product(vector), alpha=weight)
        return total

    def _present_versions(self) -> list[int]:
        module = self._classifier.module
        return [tensor._version for tensor in (*module.parameters(), *module.buffers())]

    def _parts(self, keep: bool) -> Iterator[tuple[Product, float]]:
        for inputs, labels in self._data.batches(self._size, self._classifier.device):
            yield self._part(inputs, labels, keep), len(labels) / len(self._data)

    def _part(self, inputs: Inputs, labels: Tensor, keep: bool) -> Product:
        if not self._plain:
            try:
                with cheap_second_derivatives(self._transposed):
                    logits = self._classifier.logits(inputs)
                return self._linearize(logits, labels, keep)
            except CheckpointError:  # layers under activation checkpointing run again later, as plain ones
                self._plain = True
        return self._linearize(self._classifier.logits(inputs), labels, keep)

    def _loss_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        loss = self._loss(logits, labels)
        if not torch.isfinite(loss):
            raise InputError(f"training_data: the loss on the batch is {loss.item()}; check the images and the weights")
        return loss

    @contextmanager
    def _exact(self) -> Iterator[None]:
        # Only attention's math kernel can be differentiated twice.
        with (
            self._classifier.evaluating(),
            deterministic_kernels(exact=True),
            torch.enable_grad(),
            sdpa_kernel(SDPBackend.MATH),
            self.space.freezing_others(self._classifier.module),
        ):
            yield


class Hessian(BatchOperator):
    """The Hessian of the mean loss over a batch (eq. 2): exact, by differentiating the gradient's product with v.

    A resident product costs about two gradients. See `BatchOperator` for the arguments.
    """

    def _linearize(self, logits: Tensor, labels: Tensor, keep: bool) -> Product:
        space = self.space
        gradient = torch.autograd.grad(
            self._loss_of(logits, labels), space.parameters, create_graph=True, materialize_grads=True
        )
        # A gradient that does not depend on the weights has no graph and adds nothing to the product.
        used = [i for i, g in enumerate(gradient) if g.requires_grad]

        def product(vector: Tensor) -> Tensor:
            if not used:
                return _zeros(space)
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


class GaussNewton(BatchOperator):
    """The generalised Gauss–Newton matrix Jᵀ H_L J: J the Jacobian of the logits, H_L the loss's Hessian in them.

    Positive semi-definite for a loss that is convex in the logits. A resident product costs about 1.4 gradients.
    See `BatchOperator` for the arguments.
    """

    _transposed = True

    def _linearize(self, logits: Tensor, labels: Tensor, keep: bool) -> Product:
        space = self.space
        # Jᵀu is linear in u, so differentiating it in u along v gives J v.
        u = torch.zeros_like(logits, requires_grad=True)
        pulled = torch.autograd.grad(logits, space.parameters, u, create_graph=True, materialize_grads=True)
        used = [i for i, g in enumerate(pulled) if g.requires_grad]
        leaf = logits.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self._loss_of(leaf, labels), leaf, create_graph=True)

        def product(vector: Tensor) -> Tensor:
            if not used or not slope.requires_grad:
                return _zeros(space)
            pieces = space.split(vector)
            (pushed,) = torch.autograd.grad([pulled[i] for i in used], u, [pieces[i] for i in used], retain_graph=True)
            (bent,) = torch.autograd.grad(slope, leaf, pushed, retain_graph=keep)
            back = torch.autograd.grad(logits, space.parameters, bent, retain_graph=keep, materialize_grads=True)
            return space.flatten(back)

        return product


def _zeros(space: ParameterSpace) -> Tensor:
    return torch.zeros(space.dimension, dtype=space.dtype, device=space.device)
