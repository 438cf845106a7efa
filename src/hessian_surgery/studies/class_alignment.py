"""How much of each spike lies in the span of class-mean gradients (sections 3.1 and 5.1)."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from hessian_surgery.curvature.krylov import gaussian
from hessian_surgery.curvature.search import SpikeFinder
from hessian_surgery.seeding import generator
from hessian_surgery.studies.subspace_angles import common_coordinates
from hessian_surgery.types import Array


def class_gradients(finder: SpikeFinder, labels: Tensor | None = None) -> Tensor:
    """Mean loss gradients (C', p) of the Hessian batch's images, one row for each class it has.

    Args:
        finder: the model, the loss and the batch.
        labels: groups (n,) in place of the classes, such as the same labels in another order; the
            loss always takes the true labels.
    """
    groups = finder.data.labels if labels is None else labels
    rows = [_mean_gradient(finder, (groups == group).nonzero().squeeze(1)) for group in groups.unique()]
    return torch.stack(rows)


@torch.enable_grad()
def _mean_gradient(finder: SpikeFinder, members: Tensor) -> Tensor:
    """The gradient (p,) of the mean loss over some images of the batch."""
    classifier = finder.classifier
    inputs, labels = next(iter(finder.data.subset(members).batches(len(members), classifier.device)))
    with classifier.evaluating(), finder.space.freezing_others(classifier.module):
        loss = finder.loss(classifier.logits(inputs), labels)
        return finder.space.flatten(torch.autograd.grad(loss, finder.space.parameters, materialize_grads=True))


def shares_in_span(vectors: Tensor, rows: Tensor) -> Array:
    """The shares (K,) of the squared lengths of vectors (K, p) in the span of rows (r, p).

    Rows that others span up to rounding add nothing.
    """
    # Normalized in float64: a float32 sum over millions of weights is good to three digits only.
    inside, spanning = (normalize(coordinates, dim=1) for coordinates in common_coordinates(vectors, rows))
    _, sizes, basis = torch.linalg.svd(spanning, full_matrices=False)
    basis = basis[sizes > 1e-6 * sizes[0]]
    return (inside @ basis.T).square().sum(dim=1).numpy()


def shuffled(labels: Tensor, seed: int) -> Tensor:
    """The same labels (n,) in another order: groups of the same sizes that mean nothing."""
    return labels[torch.randperm(len(labels), generator=generator(seed, "shuffled"))]


def random_vectors(finder: SpikeFinder, count: int) -> Tensor:
    """Gaussian vectors (count, p), which know nothing of the network."""
    draw = generator(finder.seed, "alignment")
    return torch.stack([gaussian(finder.space, draw) for _ in range(count)])


def alignment(finder: SpikeFinder, spikes: Tensor) -> dict[str, Sequence[float]]:
    """Shares of the spikes (K, p) in three spans of at most C vectors each.

    Returns:
        `classes`: in the span of class-mean gradients, one share (0 to 1) for each spike;
        `shuffled`: in that of mean gradients over groups of the same images, formed at random;
        `random`: of as many random vectors in the class-mean span.
    """
    means = class_gradients(finder)
    groups = class_gradients(finder, shuffled(finder.data.labels, finder.seed))
    return {
        "classes": shares_in_span(spikes, means).tolist(),
        "shuffled": shares_in_span(spikes, groups).tolist(),
        "random": shares_in_span(random_vectors(finder, len(spikes)), means).tolist(),
    }
