"""S by gradients and by finite differences: what each costs, and how well they agree.

python -m benchmarks.sensitivity --checkpoint resnet50-cifar10.safetensors \\
    --data parquet:cifar10 --spikes 9
python -m benchmarks.sensitivity --checkpoint resnet50-cifar100.safetensors \\
    --data parquet:cifar100 --spikes 99 --random
"""

import argparse
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import jvp

import hessian_surgery as hs
from benchmarks.trained_network import network_parser, open_network
from hessian_surgery.cli.inputs import OpenedModel
from hessian_surgery.curvature.basis import Basis, length
from hessian_surgery.curvature.krylov import gaussian
from hessian_surgery.directions.logit_changes import logits_after
from hessian_surgery.evidence.accuracies import soft_rates
from hessian_surgery.paper.amplitude import curvature_amplitude
from hessian_surgery.paper.sensitivity import sensitivity_from_answers
from hessian_surgery.paper.sensitivity_gradients import MATCH, matched_temperature
from hessian_surgery.seeding import generator
from hessian_surgery.types import Array

RESULTS = Path(__file__).parent / "results" / "sensitivity.json"
# Temperatures that are tried, in units of the margins' change under a probe.
SCANNED = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
# How often the images are split into halves.
HALVINGS = 20
# The probe's amplitude along random directions.
EPSILON = 0.02
# Random directions along which differences are timed.
SEVERAL = 4


def now() -> Array:
    """Seconds by the clock, and processor seconds of this process.

    Other work on the machine does not stretch the latter.
    """
    return np.array([time.perf_counter(), time.process_time()])


@dataclass(frozen=True)
class Probed:
    """Finite differences with every image's logits kept.

    Attributes:
        data: the images.
        epsilon: ε.
        logits: (2K, N, C) at θ + ε q₁, θ − ε q₁, θ + ε q₂, …
        taken: seconds; see `now`.
    """

    data: hs.LabelledSet
    epsilon: float
    logits: Tensor
    taken: Array

    def matrix(self, positions: Tensor | None = None) -> Array:
        """S (K, C) by finite differences, over all images or those at `positions`."""
        chosen = torch.arange(len(self.data)) if positions is None else positions
        labels = self.data.labels[chosen]
        right = (self.logits[:, chosen].argmax(dim=2) == labels).numpy()
        return sensitivity_from_answers(right, labels.numpy(), len(self.data.classes), self.epsilon)

    def soft(self, temperature: float) -> Array:
        """S by gradients at any temperature, without another pass over the images.

        It is the slope of the soft accuracies along the differences of the logits.
        """
        up = self.logits[0::2].double()
        down = self.logits[1::2].double()

        def accuracy(logits: Tensor) -> Tensor:
            return soft_rates(logits, self.data.labels, len(self.data.classes), temperature)[1]

        pairs = zip((up + down) / 2, (up - down) / (2 * self.epsilon), strict=True)
        return torch.stack([jvp(accuracy, (middle,), (slope,))[1] for middle, slope in pairs]).numpy()


def probe(
    classifier: hs.Classifier, spectrum: hs.Spectrum, data: hs.LabelledSet, epsilon: float, along: Iterable[int]
) -> Probed:
    """Compute the logits of all images on both sides of each spike in `along`."""
    started = now()
    rows = []
    for i in along:
        steps = (epsilon * spectrum.vector(i), -epsilon * spectrum.vector(i))
        rows += [logits_after(classifier, spectrum.weights, step, data).cpu() for step in steps]
        print(f"differences along {i + 1} of {len(spectrum)}", flush=True)
    return Probed(data, epsilon, torch.stack(rows), now() - started)


def correlation(first: Array, second: Array) -> float:
    """Pearson's correlation over all K × C entries."""
    return float(np.corrcoef(first.ravel(), second.ravel())[0, 1])


def halves(data: hs.LabelledSet, seed: int) -> list[Tensor]:
    """Positions of the images in two stratified halves."""
    at = hs.as_labelled((torch.arange(len(data))[:, None], data.labels), classes=data.classes)
    return [part.inputs()[:, 0] for part in hs.stratified_split(at, seed=seed)]


def agreement(classifier: hs.Classifier, spectrum: hs.Spectrum, probed: Probed, soft: Array) -> dict[str, Any]:
    """Correlate S by gradients with S by differences, on the same images and on another half."""
    data = probed.data
    exact = probed.matrix()
    pairs = [halves(data, seed) for seed in range(HALVINGS)]
    split_half = [correlation(probed.matrix(one), probed.matrix(other)) for one, other in pairs]
    one, other = pairs[0]
    temperature = matched_temperature(classifier, spectrum, data, probed.epsilon)
    on_half = hs.gradient_sensitivity(classifier, spectrum, data.subset(one), temperature=temperature)
    unit = temperature / MATCH
    return {
        "correlation": correlation(soft, exact),
        "split_half": float(np.mean(split_half)),
        "of_split_half": correlation(soft, exact) / float(np.mean(split_half)),
        "differences_to_other_half": split_half[0],
        "gradients_to_other_half": correlation(on_half, probed.matrix(other)),
        "norm_ratio": float(np.linalg.norm(soft) / np.linalg.norm(exact)),
        "temperature": temperature,
        "scan": {scale: correlation(probed.soft(scale * unit), exact) for scale in SCANNED},
    }


def random_spectrum(space: hs.ParameterSpace, count: int) -> hs.Spectrum:
    """Random unit vectors in bfloat16 in place of spikes.

    The cost of S does not depend on the directions.
    """
    basis = Basis(space.dimension, space.dtype, space.device, hs.Storage(count, "device", "bfloat16"))
    for i in range(count):
        vector = gaussian(space, generator(0, "random-direction", i))
        basis.append(vector / length(vector))
    return hs.Spectrum(np.ones(count), basis.vectors(), np.zeros(count), 0.01, count, space)


def timed_gradients(
    classifier: hs.Classifier, spectrum: hs.Spectrum, data: hs.LabelledSet, epsilon: float
) -> tuple[Array, Array]:
    """S by gradients, and the seconds that it took, matching the temperature included."""
    started = now()
    matrix = hs.gradient_sensitivity(classifier, spectrum, data, epsilon)
    return matrix, now() - started


def warm_up(classifier: hs.Classifier, spectrum: hs.Spectrum, data: hs.LabelledSet, epsilon: float) -> None:
    """Run each way once on a GPU, which loads its kernels in the first pass of a process."""
    if classifier.device.type == "cuda":
        timed_gradients(classifier, spectrum, data, epsilon)
        probe(classifier, spectrum, data, epsilon, [0])


def costs(differences: Array, gradients: Array) -> dict[str, list[float]]:
    """Seconds of both ways (see `now`), and those of differences divided by those of gradients."""
    ratio = differences / gradients
    return {"differences_s": differences.tolist(), "gradients_s": gradients.tolist(), "ratio": ratio.tolist()}


def open_images(given: argparse.Namespace) -> tuple[OpenedModel, hs.LabelledSet]:
    """Open the network with its data, and its calibration images, capped as asked."""
    opened = open_network(given)
    data = opened.parts.calibration
    if given.per_class is not None:
        data = hs.cap_per_class(data, given.per_class)
    return opened, data.resident(opened.classifier.device)


def examine(given: argparse.Namespace) -> dict[str, Any]:
    """Compute S both ways along the spikes of a network: cost and agreement."""
    opened, data = open_images(given)
    classifier = opened.classifier
    batch = hs.hessian_batch(opened.parts.training, given.samples).resident(classifier.device)
    spectrum = hs.lanczos(hs.Hessian(opened.model, batch), given.spikes)
    print(f"{len(spectrum)} spikes in {spectrum.steps} products", flush=True)
    epsilon = curvature_amplitude(float(spectrum.eigenvalues[0]))
    warm_up(classifier, spectrum, data, epsilon)
    soft, taken = timed_gradients(classifier, spectrum, data, epsilon)
    probed = probe(classifier, spectrum, data, epsilon, range(len(spectrum)))
    found: dict[str, Any] = {"images": len(data), "classes": len(data.classes), "epsilon": epsilon}
    found |= {"cost": costs(probed.taken, taken)}
    return found | agreement(classifier, spectrum, probed, soft)


def examine_random(given: argparse.Namespace) -> dict[str, Any]:
    """Compute S both ways along random directions: cost alone.

    Differences are timed along some of the directions: each costs the same.
    """
    opened, data = open_images(given)
    spectrum = random_spectrum(hs.parameter_space(opened.model), given.spikes)
    warm_up(opened.classifier, spectrum, data, EPSILON)
    _, taken = timed_gradients(opened.classifier, spectrum, data, EPSILON)
    # A first probe, not timed: memory that gradients used has to be allocated again.
    probe(opened.classifier, spectrum, data, EPSILON, [0])
    several = range(min(SEVERAL, given.spikes))
    probed = probe(opened.classifier, spectrum, data, EPSILON, several)
    cost = costs(given.spikes / len(several) * probed.taken, taken)
    return {"images": len(data), "classes": len(data.classes), "cost": cost}


def main() -> None:
    """Measure, print and add to the file."""
    parser = network_parser(__doc__, RESULTS)
    parser.add_argument("--spikes", type=int, required=True)
    parser.add_argument("--samples", type=int, default=128, help="images in the Hessian batch")
    parser.add_argument("--per-class", type=int, help="the most calibration images of a class")
    parser.add_argument("--random", action="store_true", help="random directions: only the cost, quickly")
    given = parser.parse_args()
    found = (examine_random if given.random else examine)(given)
    found |= {"threads": torch.get_num_threads(), "device": given.device, "torch": torch.__version__}
    print(json.dumps(found, indent=1))
    known = json.loads(given.out.read_text()) if given.out.exists() else {}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(known | {f"{given.checkpoint.stem}, K={given.spikes}": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
