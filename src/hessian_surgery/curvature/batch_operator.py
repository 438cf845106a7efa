"""BatchOperator: curvature of a model's loss on a batch, by products through autograd graphs."""

import math
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointError

from hessian_surgery.cuda_graphs import recordable, recorded_function
from hessian_surgery.curvature.operators import Product, SymmetricOperator
from hessian_surgery.curvature.second_derivatives import cheap_second_derivatives
from hessian_surgery.data.batches import Inputs
from hessian_surgery.data.labelled import Data, LabelledSet, as_labelled
from hessian_surgery.distributed import total
from hessian_surgery.errors import InputError
from hessian_surgery.model.classifier import Classifier, as_classifier, deterministic_kernels
from hessian_surgery.model.halving import release_memory
from hessian_surgery.model.losses import Loss, cross_entropy
from hessian_surgery.model.parameters import ParameterSpace, parameter_space
from hessian_surgery.ranks import present


class BatchOperator(SymmetricOperator):
    """A curvature matrix of the mean loss over a batch, at the module's present weights.

    A resident batch keeps its autograd graph. A product is then one walk through that graph,
    which a GPU records once and replays. With `micro_batch` the batch is streamed in parts, and
    every product builds their graphs again: up to twice the time for a fraction of the memory.
    A batch, or a part of one, that does not fit in memory is halved, and streamed from then on.
    Do not change the module while a resident operator is in use: its next product would refuse.
    Ranks share the batch, and each product takes one exchange between them.

    Args:
        model: a module or a `Classifier`; it runs in evaluation mode and is left as it was.
        data: the batch, in any form that `as_labelled` takes.
        space: the weights; by default all trainable ones.
        loss: a function of logits and labels, a mean over the samples.
        micro_batch: samples per part when streaming; None keeps the whole batch resident.
    """

    space: ParameterSpace

    # Whether gradients are differentiated only in the vector that is pulled back.
    _transposed = False

    def __init__(
        self,
        model: nn.Module | Classifier,
        data: Data,
        space: ParameterSpace | None = None,
        loss: Loss = cross_entropy,
        micro_batch: int | None = None,
    ) -> None:
        self._classifier = as_classifier(model).as_inputs_come()
        self.space = space or parameter_space(self._classifier.module)
        whole = as_labelled(data)
        self._count = len(whole)
        self._data = _own_part(whole)
        self._loss = loss
        self._size = micro_batch or len(self._data)
        self._resident: Product | None = None
        self._plain = False
        self._versions = self._present_versions()
        if self._size >= len(self._data) > 0:
            try:
                self._make_resident()
            except torch.OutOfMemoryError:
                if len(self._data) == 1:
                    raise
            if self._resident is None:
                self._halve()

    @abstractmethod
    def _linearize(self, logits: Tensor, labels: Tensor, keep: bool) -> Product:
        """The product for one part of the batch; `keep` if it will be called more than once.

        It must not refer to this operator: the cycle would keep activations in memory until the
        garbage collector runs.
        """

    def _make_resident(self) -> None:
        with self._exact():
            with recordable(self.device):
                product, _ = next(self._parts(keep=True))
            self._resident = recorded_function(product, zeros(self.space))

    def _multiply(self, vector: Tensor) -> Tensor:
        return total(self.share(vector))

    def share(self, vector: Tensor) -> Tensor:
        """What this rank's part of the batch adds to H v: a new tensor (p,)."""
        while True:
            try:
                return self._share_once(vector)
            except torch.OutOfMemoryError:
                if min(self._size, len(self._data)) == 1:
                    raise
            self._halve()

    def _halve(self) -> None:
        """Stream the batch in parts of half the size, after one that did not fit in memory."""
        self._size = math.ceil(min(self._size, len(self._data)) / 2)
        self._resident = None
        release_memory()

    def _share_once(self, vector: Tensor) -> Tensor:
        if self._resident is not None:
            # A recorded product would go on with the old activations and the new weights.
            if self._versions != self._present_versions():
                raise RuntimeError(
                    "the module was modified by an inplace operation since this operator was made; make a new operator"
                )
            # Checkpointed layers run again in the product, and must do so in evaluation mode.
            with self._exact() if self._plain else deterministic_kernels(exact=True):
                product = self._resident(vector)
            return product if len(self._data) == self._count else product.mul_(len(self._data) / self._count)
        summed = zeros(self.space)
        if len(self._data) == 0:
            return summed
        with self._exact():
            for product_of, weight in self._parts(keep=False):
                summed.add_(product_of(vector), alpha=weight)
        return summed

    def _present_versions(self) -> list[int]:
        module = self._classifier.module
        return [tensor._version for tensor in (*module.parameters(), *module.buffers())]

    def _parts(self, keep: bool) -> Iterator[tuple[Product, float]]:
        """The product of each part of the batch, with the part's share of the samples."""
        for inputs, labels in self._data.batches(self._size, self._classifier.device):
            yield self._part(inputs, labels, keep), len(labels) / self._count

    def _part(self, inputs: Inputs, labels: Tensor, keep: bool) -> Product:
        if not self._plain:
            try:
                with cheap_second_derivatives(self._transposed):
                    logits = self._classifier.logits(inputs)
                return self._linearize(logits, labels, keep)
            except CheckpointError:  # checkpointed layers run again later, as plain ones
                self._plain = True
        return self._linearize(self._classifier.logits(inputs), labels, keep)

    def _loss_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        loss = self._loss(logits, labels)
        if not torch.isfinite(loss):
            raise InputError(f"training_data: the loss on the batch is {loss.item()}; check the images and the weights")
        return loss

    @contextmanager
    def _exact(self) -> Iterator[None]:
        # Of attention's kernels, only the math one can be differentiated twice.
        with (
            self._classifier.evaluating(),
            deterministic_kernels(exact=True),
            torch.enable_grad(),
            sdpa_kernel(SDPBackend.MATH),
            self.space.freezing_others(self._classifier.module),
        ):
            yield


def _own_part(data: LabelledSet) -> LabelledSet:
    """This rank's part of a batch; all of it if there is one rank."""
    part = present().part(len(data))
    return data if len(part) == len(data) else data.subset(torch.arange(part.start, part.stop))


def zeros(space: ParameterSpace) -> Tensor:
    """The zero vector (p,)."""
    return torch.zeros(space.dimension, dtype=space.dtype, device=space.device)
