"""What ranks are tested on: the same function runs on one process and on several."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset

import hessian_surgery as hs
from hessian_surgery.curvature.memory_plan import basis_bytes
from hessian_surgery.data.data_hash import image_hashes
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.data.sources import Parts, open_data
from hessian_surgery.directions.class_gradients import gradient_vectors
from hessian_surgery.directions.family import Probe
from hessian_surgery.directions.logit_changes import logit_tangents
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.model.head import compute_features, find_head
from hessian_surgery.model.resnet import BasicBlock
from hessian_surgery.model.smallnet import SmallNet
from hessian_surgery.ranks import present

COLLECTIVES = (
    "all_reduce",
    "all_gather_single",
    "all_gather_into_tensor",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
)


@contextmanager
def counted(least: int) -> Iterator[list[str]]:
    """The names of the collectives of this block that take tensors of so many numbers or more."""
    calls: list[str] = []
    saved = {name: getattr(dist, name) for name in COLLECTIVES if hasattr(dist, name)}

    def noting(name: str) -> Any:
        def call(*tensors: Any, **options: Any) -> Any:
            if tensors[0].numel() >= least:
                calls.append(name.rpartition("_")[0] if name not in ("all_reduce",) else name)
            return saved[name](*tensors, **options)

        return call

    try:
        for name in saved:
            setattr(dist, name, noting(name))
        yield calls
    finally:
        for name, function in saved.items():
            setattr(dist, name, function)


def small_resnet(classes: int) -> nn.Module:
    """Two residual blocks with BatchNorm, and a linear head; about 5,000 weights."""
    pool = (nn.AdaptiveAvgPool2d(2), nn.Flatten())
    blocks = (nn.Conv2d(1, 8, 3, padding=1), BasicBlock(8, 8, 1), BasicBlock(8, 16, 2))
    return nn.Sequential(*blocks, *pool, nn.Linear(64, classes))


NETS = {"digits": SmallNet, "resnet": small_resnet}


def opened(net: str, weights: str) -> tuple[nn.Module, Parts]:
    """A trained net in float64, and the digits in float64."""
    module = NETS[net](10)
    module.load_state_dict(torch.load(weights))
    parts = open_data("digits", seed=0)
    return module.double().eval(), Parts(*(in_float64(part) for part in vars(parts).values()))


def in_float64(data: LabelledSet) -> LabelledSet:
    inputs = data.inputs()
    assert isinstance(inputs, Tensor)
    return hs.as_labelled((inputs.double(), data.labels), classes=data.classes)


def most(net: str, weights: str) -> dict[str, Any]:
    """What most parts of the package find, the collectives of products, and the basis's bytes."""
    module, parts = opened(net, weights)
    found = evaluations(module, parts) | curvature(module, parts) | directions(module, parts)
    return found | decisions("default", BOTH, module, parts)


def everything(net: str, weights: str) -> dict[str, Any]:
    """`most`, and what the paper's loop decides."""
    return most(net, weights) | decisions("loop", LOOP, *opened(net, weights))


class Noisy(Dataset):
    """Images that are drawn again each time, from a generator that differs from rank to rank."""

    def __init__(self) -> None:
        self._draw = torch.Generator().manual_seed(present().rank)

    def __len__(self) -> int:
        return 1100

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.randn(2, generator=self._draw), i % 2


def evaluations(module: nn.Module, parts: Parts) -> dict[str, Any]:
    """Logits and features: in many batches, and in one batch for all ranks."""
    classifier = hs.Classifier(module)
    data = parts.calibration
    head = find_head(classifier, data.fetch(torch.arange(2)))
    assert head is not None
    features, _ = compute_features(classifier, head, data, 100)
    return {
        "logits": compute_logits(classifier, data, 100),
        "one batch": compute_logits(classifier, data, 1000),
        "one image": compute_logits(classifier, data.subset(torch.arange(1)), 100),
        "features": features,
        "hashes": image_hashes(data),
        "random images": hs.as_labelled(Noisy()).resident().inputs(),
        "counts": class_counts(compute_logits(classifier, parts.heldout).argmax(dim=1), parts.heldout),
    }


def class_counts(predicted: Tensor, data: LabelledSet) -> list[int]:
    """How many images of each class are answered right."""
    return torch.bincount(data.labels[predicted == data.labels], minlength=len(data.classes)).tolist()


def curvature(module: nn.Module, parts: Parts) -> dict[str, Any]:
    """Products of batches of all sizes, spectrum and density."""
    space = hs.parameter_space(module)
    vector = torch.randn(space.dimension, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found: dict[str, Any] = {}
    for size, part in ((1, None), (3, None), (64, None), (64, 7)):
        batch = hs.hessian_batch(parts.training, size)
        for kind in (hs.Hessian, hs.GaussNewton):
            operator = kind(module, batch, space, micro_batch=part)
            with counted(space.dimension) as calls:
                found[f"{kind.__name__} of {size} by {part}"] = operator @ vector
            found["large collectives of a product"] = calls
    hessian = hs.Hessian(module, hs.hessian_batch(parts.training, 64))
    width = -(-space.dimension // present().size)
    with counted(width) as calls:
        spectrum = hs.lanczos(hessian, k=4, tolerance=1e-8)
    return found | {
        "large collectives of a step": [len(calls) / spectrum.steps, sorted(set(calls))],
        "eigenvalues": torch.from_numpy(spectrum.eigenvalues),
        "spikes": torch.stack([up(spectrum.vector(i)) for i in range(4)]),
        "whole vectors": torch.stack([up(row) for row in spectrum.whole_vectors()]),
        "combined": spectrum.combine(np.array([1.0, 0.0, 0.0, 0.0])).abs(),
        "restarted": torch.from_numpy(
            hs.lanczos(hessian, k=4, storage=hs.Storage(10, "disk"), tolerance=1e-8).eigenvalues
        ),
        "in half precision": torch.from_numpy(
            hs.lanczos(hessian, k=2, steps=12, storage=hs.Storage(12, "host", "bfloat16")).eigenvalues
        ),
        "density": torch.from_numpy(hs.spectral_density(hessian, steps=8, probes=2).nodes[0]),
        "bytes of the basis": spectrum.basis_bytes / spectrum.storage.rows / space.dimension,
        "bytes planned": basis_bytes(spectrum.storage, space) - spectrum.basis_bytes,
        "dense": torch.from_numpy(hs.lanczos(torch.diag(torch.arange(1.0, 8.0)), k=3, tolerance=1e-6).eigenvalues),
    }


def up(vector: Tensor) -> Tensor:
    """A vector with the sign that makes its largest entry positive."""
    return vector * vector[vector.abs().argmax()].sign()


def directions(module: nn.Module, parts: Parts) -> dict[str, Any]:
    """Class gradients, and the logits' derivatives along one."""
    classifier = hs.Classifier(module)
    space = hs.parameter_space(module)
    data = parts.calibration
    probe = Probe(classifier, space, data, compute_logits(classifier, data))
    names, vectors = gradient_vectors(probe, parts.training, "training_data")
    weights = np.linspace(0.5, 1.5, len(names))
    return {
        "gradients": torch.stack([vectors(i) for i in range(len(names))]),
        "gradients combined": vectors.combine(weights),
        "slopes": probe.slopes(vectors(0), None),
        "tangents": logit_tangents(classifier, space, data, 100)(vectors(0), None),
    }


SEARCH = hs.SpikeSearch(spikes=3, hessian_samples=48)
BOTH = hs.SurgeryConfig(directions="both", search=SEARCH)
# With a phase that deflates the spikes of the one before.
LOOP = hs.LoopConfig(iterations=1, phases=2, search=SEARCH)


def decisions(name: str, config: hs.OperationConfig, module: nn.Module, parts: Parts) -> dict[str, Any]:
    """What an operation decides, and where it ends."""
    own = copy.deepcopy(module)
    outcome = hs.operate(own, **{f"{part}_data": images for part, images in vars(parts).items()}, config=config)
    records = outcome.iterations
    return {
        f"{name}: accepted": [record.accepted for record in records],
        f"{name}: coefficients": torch.tensor([record.coefficients for record in records]),
        f"{name}: class accuracies": [record.per_class for record in records],
        f"{name}: counts": class_counts(outcome.findings.heldout.after.predicted, parts.heldout),
        f"{name}: verdict": outcome.verdict.outcome,
        f"{name}: weights": torch.cat([parameter.detach().flatten() for parameter in own.parameters()]),
    }
