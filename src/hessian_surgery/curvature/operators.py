"""Curvature operators: symmetric p × p matrices known by their products with vectors."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from hessian_surgery.batches import Inputs
from hessian_surgery.classifier import Classifier, as_classifier, deterministic_kernels
from hessian_surgery.data.labelled import Data, as_labelled
from hessian_surgery.errors import InputError
from hessian_surgery.losses import Loss, cross_entropy
from hessian_surgery.parameters import ParameterSpace, parameter_space


class Operator(Protocol):
    """A symmetric operator on vectors of length `space.dimension`."""

    @property
    def space(self) -> ParameterSpace:
        """The weights that the vectors are directions of."""

    def __call__(self, vector: Tensor) -> Tensor:
        """The product with a vector (p,)."""


@dataclass(frozen=True)
class _Graph:
    """The gradient of one batch's loss, kept with its graph so that it can be differentiated again and again."""

    gradient: tuple[Tensor, ...]
    weight: float


class Hessian:
    """The Hessian of the mean loss over a batch at the module's present weights (eq. 2).

    Exact, by differentiating the gradient's product with v (Pearlmutter). A resident batch keeps the graph of its
    gradient, so that a product costs one pass back through that graph; with `micro_batch` the batch is streamed in
    parts whose graphs are rebuilt for each product, for up to twice the time and a fraction of the memory.
    The module must not be changed while a resident operator is in use; autograd says so if it is.

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
        self._resident: _Graph | None = None
        if self._size >= len(self._data):
            with self._exact():
                self._resident = next(self._graphs())

    def __call__(self, vector: Tensor) -> Tensor:
        """H v, (p,)."""
        pieces = self.space.split(vector)
        if self._resident is not None:
            with deterministic_kernels(exact=True):
                return self._product(self._resident, pieces, keep=True)
        total = torch.zeros(self.space.dimension, dtype=self.space.dtype, device=self.space.device)
        with self._exact():
            for graph in self._graphs():
                total.add_(self._product(graph, pieces, keep=False), alpha=graph.weight)
        return total

    def _graphs(self) -> Iterator[_Graph]:
        for inputs, labels in self._data.batches(self._size, self._classifier.device):
            yield _Graph(self._gradient(inputs, labels), weight=len(labels) / len(self._data))

    def _gradient(self, inputs: Inputs, labels: Tensor) -> tuple[Tensor, ...]:
        loss = self._loss(self._classifier.logits(inputs), labels)
        if not torch.isfinite(loss):
            raise InputError(f"hessian_data: the loss on the batch is {loss.item()}; check the images and the weights")
        return torch.autograd.grad(loss, self.space.parameters, create_graph=True, materialize_grads=True)

    def _product(self, graph: _Graph, pieces: list[Tensor], keep: bool) -> Tensor:
        # A gradient that does not depend on the weights has no graph and adds nothing to the product.
        pairs = [(g, v) for g, v in zip(graph.gradient, pieces, strict=True) if g.requires_grad]
        if not pairs:
            return torch.zeros(self.space.dimension, dtype=self.space.dtype, device=self.space.device)
        gradients, vectors = zip(*pairs, strict=True)
        products = torch.autograd.grad(
            gradients, self.space.parameters, vectors, retain_graph=keep, materialize_grads=True
        )
        return self.space.flatten(products)

    @contextmanager
    def _exact(self) -> Iterator[None]:
        # Only attention's math kernel can be differentiated twice.
        with (
            self._classifier.evaluating(),
            deterministic_kernels(exact=True),
            torch.enable_grad(),
            sdpa_kernel(SDPBackend.MATH),
        ):
            yield
