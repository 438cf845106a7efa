"""One point of the scaling benchmark: a made-up set, a network of any size, and its operation.

A class is a Gaussian cloud of images around a prototype. The network's convolutions are random; its
head is the linear discriminant of their features, in closed form. So a network of a thousand
classes is made in a second.
"""

import copy
import ctypes
import gc
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import hessian_surgery as hs
from hessian_surgery.curvature.memory import Watch
from hessian_surgery.directions.calibration_gradients import enough_images
from hessian_surgery.directions.class_groups import count_groups
from hessian_surgery.evidence.accuracies import logit_unit

SHAPE = (3, 16, 16)
# Images that the head is made from and that class gradients are taken over, at least; held-out
# images. But 5 of each class at least.
TRAINING = 5000
HELDOUT = 5000
# The accuracy that the noise of the images is chosen for.
ACCURACY = 0.8
# How much noisier the noisiest class is than the least noisy one.
NOISIER = 1.6
# How wrong the head's biases are, so that there is something to gain, in units of `logit_unit`.
MISTAKE = 0.25
# Features of a channel that the head sees: 2×2 places.
PLACES = 4


@dataclass(frozen=True)
class Point:
    """What is varied.

    Attributes:
        classes: C.
        images: calibration images, N; as many of each class.
        width: channels of the first convolution, which sets the number of weights.
    """

    classes: int
    images: int
    width: int


def make_network(width: int, classes: int, generator: torch.Generator | None) -> nn.Sequential:
    """Three random convolutions and a head, which is not fitted yet."""
    net = nn.Sequential(
        nn.Conv2d(SHAPE[0], width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * PLACES, classes),
    )
    for layer in net:
        if isinstance(layer, nn.Conv2d):
            fan = layer.weight[0].numel()
            layer.weight.data = torch.randn(layer.weight.shape, generator=generator) * (2 / fan) ** 0.5
            layer.bias.data = torch.zeros_like(layer.bias)
    return net.eval()


def draw_images(prototypes: Tensor, noise: float, each: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """So many images of each class (C · each, …), and their labels; later classes are noisier."""
    classes = len(prototypes)
    labels = torch.arange(classes).repeat(each)
    spread = noise * torch.linspace(1.0, NOISIER, classes)[labels]
    images = torch.randn(len(labels), *SHAPE, generator=generator).mul_(spread[:, None, None, None])
    return images.add_(prototypes[labels]), labels


@torch.no_grad()
def fit_head(net: nn.Sequential, images: Tensor, labels: Tensor) -> None:
    """Make the head the linear discriminant of the features before it, with wrong biases."""
    features = torch.cat([net[:-1](part) for part in images.split(500)]).double()
    head = net[-1]
    count = torch.bincount(labels).double()[:, None]
    means = torch.zeros(len(count), features.shape[1], dtype=torch.float64).index_add_(0, labels, features) / count
    within = features - means[labels]
    spread = within.T @ within / len(labels)
    spread += 0.01 * spread.diagonal().mean() * torch.eye(len(spread))
    weight = torch.linalg.solve(spread, means.T).T
    bias = -(weight * means).sum(dim=1) / 2
    wrong = MISTAKE * logit_unit(features @ weight.T + bias)
    bias += wrong * torch.randn(len(bias), generator=torch.Generator().manual_seed(1))
    head.weight.data = weight.float()
    head.bias.data = bias.float()


@torch.no_grad()
def accuracy_at(net: nn.Sequential, prototypes: Tensor, noise: float, generator: torch.Generator) -> float:
    """The accuracy of a network whose head is fitted to images of some noise, on other images."""
    each = max(5, TRAINING // len(prototypes))
    fit_head(net, *draw_images(prototypes, noise, each, generator))
    images, labels = draw_images(prototypes, noise, max(1, 1000 // len(prototypes)), generator)
    return float((net(images).argmax(dim=1) == labels).double().mean())


def make_case(point: Point) -> tuple[nn.Sequential, dict[str, hs.LabelledSet]]:
    """The network of a point, right for some 80 % of the images, and its three sets of images."""
    generator = torch.Generator().manual_seed(0)
    prototypes = torch.randn(point.classes, *SHAPE, generator=generator)
    prototypes = nn.functional.avg_pool2d(prototypes, 3, stride=1, padding=1) * 3
    net = make_network(point.width, point.classes, generator)
    low, high = 0.05, 20.0
    for _ in range(8):
        noise = (low * high) ** 0.5
        if accuracy_at(net, prototypes, noise, generator) > ACCURACY:
            low = noise
        else:
            high = noise
    sets = {}
    for name, each in per_class(point).items():
        images, labels = draw_images(prototypes, noise, each, generator)
        if name == "training":
            fit_head(net, images, labels)
        sets[name] = hs.as_labelled((images, labels), [str(i) for i in range(point.classes)])
    return net, sets


def per_class(point: Point) -> dict[str, int]:
    """Images of each class in the three sets."""
    least = {"training": 5, "calibration": 2, "heldout": 5}
    wanted = {"training": TRAINING, "calibration": point.images, "heldout": HELDOUT}
    return {name: max(size // point.classes, least[name]) for name, size in wanted.items()}


def sizes(point: Point) -> dict[str, int]:
    """The sizes that the cost of a point depends on; nothing is computed for it."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter, torch.no_grad():
        net = make_network(point.width, point.classes, None)
        net(torch.zeros(1, *SHAPE))
    each = per_class(point)
    crossed = enough_images(torch.full((point.classes,), each["calibration"]))
    return (
        asdict(point)
        | {name: size * point.classes for name, size in each.items()}
        | {
            "directions": (1 + crossed) * count_groups(point.classes),
            "weights": sum(weight.numel() for weight in net.parameters()),
            "flops": counter.get_total_flops(),
        }
    )


def operate(net: nn.Module, sets: dict[str, hs.LabelledSet], device: torch.device) -> dict[str, Any]:
    """Operate on a copy of the network: seconds of each stage, σ and accuracy before and after."""
    model = copy.deepcopy(net)
    parts = {f"{name}_data": part for name, part in sets.items()}
    started = time.perf_counter()
    outcome = hs.operate(model, **parts, front=True)
    if device.type == "cuda":
        torch.cuda.synchronize()
    total = time.perf_counter() - started
    seconds = dict(outcome.iterations[0].seconds)
    seconds["rest"] = total - sum(seconds.values())
    before, after = outcome.findings.heldout.metrics()
    return {
        "seconds": seconds,
        "accuracy": (before.accuracy, after.accuracy),
        "sigma": (before.sigma, after.sigma),
        "accepted": outcome.iterations[0].accepted,
    }


def give_back_memory() -> None:
    """Return freed memory to the system: what making the case has left would hide what comes."""
    gc.collect()
    with suppress(OSError, AttributeError):  # other systems have another allocator
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def measure(point: Point, device: torch.device, repeats: int) -> dict[str, Any]:
    """Measure one point; call it once in a process.

    Of repeated runs the shortest time of each stage counts: what is longer is other work on the
    machine. Memory is the most that was held, minus what was held before the first run.
    """
    warm_net, warm_sets = make_case(Point(3, 60, 2))
    operate(warm_net.to(device), warm_sets, device)
    net, sets = make_case(point)
    net = net.to(device)
    give_back_memory()
    watch = Watch(device)
    runs = [operate(net, sets, device) for _ in range(repeats)]
    seconds = {stage: min(run["seconds"][stage] for run in runs) for stage in runs[0]["seconds"]}
    return {"sizes": sizes(point)} | runs[0] | {"seconds": seconds, "bytes": watch.peak()}
