"""S by gradients beside S by finite differences: what each costs, and how well they agree.

python -m benchmarks.sensitivity --checkpoint resnet50-cifar10.safetensors --data parquet:cifar10 --spikes 9
python -m benchmarks.sensitivity --checkpoint resnet50-cifar100.safetensors --data parquet:cifar100 --spikes 99 --random
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
from hessian_surgery.cli.inputs import InputOptions, Opened, open_inputs
from hessian_surgery.curvature.basis import Basis, length
from hessian_surgery.curvature.krylov import gaussian
from hessian_surgery.directions.logit_changes import logits_after
from hessian_surgery.evidence.rates import soft_rates
from hessian_surgery.paper.amplitude import curvature_amplitude
from hessian_surgery.paper.sensitivity_gradients import MATCH, matched_temperature
from hessian_surgery.seeding import generator
from hessian_surgery.studies.effective_rank import matrix_of
from hessian_surgery.types import Array

RESULTS = Path(__file__).parent / "results" / "sensitivity.json"
# Temperatures tried beside the matched one, in units of the margins' change under a probe.
SCANNED = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
HALVINGS = 20
# Of the probe along random directions.
EPSILON = 0.02
# Random directions along which differences are timed.
SEVERAL = 4


def now() -> Array:
    """Seconds by the clock and of this process on the processor, which other work on the machine does not stretch."""
    return np.array([time.perf_counter(), time.process_time()])


@dataclass(frozen=True)
class Probed:
    """Finite differences with every image's logits kept.

    Attributes:
        data: the images.
        epsilon: ε.
        logits: (2K, N, C) at θ + ε q₁, θ − ε q₁, θ + ε q₂, …
        taken: seconds by the clock and of the processor.
    """

    data: hs.LabelledSet
    epsilon: float
    logits: Tensor
    taken: Array

    def matrix(self, positions: Tensor | None = None) -> Array:
        """S (K, C) by finite differences, of all images or those at `positions`."""
        chosen = torch.arange(len(self.data)) if positions is None else positions
        labels = self.data.labels[chosen]
        right = (self.logits[:, chosen].argmax(dim=2) == labels).numpy()
        return matrix_of(right, labels.numpy(), len(self.data.classes), self.epsilon)

    def soft(self, temperature: float) -> Array:
        """S by gradients at any temperature for nothing: the slope of soft accuracies along the logits' differences."""
        up, down = self.logits[0::2].double(), self.logits[1::2].double()

        def accuracy(logits: Tensor) -> Tensor:
            return soft_rates(logits, self.data.labels, len(self.data.classes), temperature)[1]

        pairs = zip((up + down) / 2, (up - down) / (2 * self.epsilon), strict=True)
        return torch.stack([jvp(accuracy, (middle,), (slope,))[1] for middle, slope in pairs]).numpy()


def probe(
    classifier: hs.Classifier, spectrum: hs.Spectrum, data: hs.LabelledSet, epsilon: float, along: Iterable[int]
) -> Probed:
    """Two passes over the images for each spike in `along`."""
    started, rows = now(), []
    for i in along:
        steps = (epsilon * spectrum.vector(i), -epsilon * spectrum.vector(i))
        rows += [logits_after(classifier, spectrum.space, step, data).cpu() for step in steps]
        print(f"differences along {i + 1} of {len(spectrum)}", flush=True)
    return Probed(data, epsilon, torch.stack(rows), now() - started)


def correlation(first: Array, second: Array) -> float:
    """Pearson's, over all K × C entries."""
    return float(np.corrcoef(first.ravel(), second.ravel())[0, 1])


def halves(data: hs.LabelledSet, seed: int) -> list[Tensor]:
    """Positions of two stratified halves."""
    at = hs.as_labelled((torch.arange(len(data))[:, None], data.labels), classes=data.classes)
    return [part.inputs()[:, 0] for part in hs.stratified_split(at, seed=seed)]


def agreement(classifier: hs.Classifier, spectrum: hs.Spectrum, probed: Probed, soft: Array) -> dict[str, Any]:
    """Correlations: with differences on the same images, between halves of the images, and from half to half."""
    data, exact = probed.data, probed.matrix()
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
    """Random unit vectors in bfloat16 in the place of spikes: what S costs does not depend on which they are."""
    basis = Basis(space.dimension, space.dtype, space.device, hs.Storage(count, "device", "bfloat16"))
    for i in range(count):
        vector = gaussian(space, generator(0, "random-direction", i))
        basis.append(vector / length(vector))
    return hs.Spectrum(np.ones(count), basis.vectors(), np.zeros(count), 0.01, count, space)


def timed_gradients(
    classifier: hs.Classifier, spectrum: hs.Spectrum, data: hs.LabelledSet, epsilon: float
) -> tuple[Array, Array]:
    """S by gradients, the temperature's matching included, and the seconds that it took."""
    started = now()
    matrix = hs.gradient_sensitivity(classifier, spectrum, data, epsilon)
    return matrix, now() - started


def warm_up(classifier: hs.Classifier, spectrum: hs.Spectrum, data: hs.LabelledSet, epsilon: float) -> None:
    """Each way once on a GPU, which chooses and loads its kernels at the first pass of a process."""
    if classifier.device.type == "cuda":
        timed_gradients(classifier, spectrum, data, epsilon)
        probe(classifier, spectrum, data, epsilon, [0])


def costs(differences: Array, gradients: Array) -> dict[str, list[float]]:
    """Seconds of both by the clock and of the processor, and how many times over differences cost what gradients do."""
    ratio = differences / gradients
    return {"differences_s": differences.tolist(), "gradients_s": gradients.tolist(), "ratio": ratio.tolist()}


def open_network(given: argparse.Namespace) -> tuple[Opened, hs.LabelledSet]:
    """The network with its data, and the calibration images."""
    options = InputOptions("resnet50", given.checkpoint, given.data, *[None] * 3, given.device, *[None] * 3)
    opened = open_inputs(options, seed=0)
    data = opened.parts.calibration
    if given.per_class is not None:
        data = hs.cap_per_class(data, given.per_class)
    return opened, data.resident(opened.classifier.device)


def examine(given: argparse.Namespace) -> dict[str, Any]:
    """Both ways along the spikes of a network: cost and agreement."""
    opened, data = open_network(given)
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
    """Both ways along random directions: cost alone. Differences are timed along some of them: each costs the same."""
    opened, data = open_network(given)
    spectrum = random_spectrum(hs.parameter_space(opened.model), given.spikes)
    warm_up(opened.classifier, spectrum, data, EPSILON)
    _, taken = timed_gradients(opened.classifier, spectrum, data, EPSILON)
    probe(opened.classifier, spectrum, data, EPSILON, [0])  # the gradients have left no memory to take again
    several = range(min(SEVERAL, given.spikes))
    probed = probe(opened.classifier, spectrum, data, EPSILON, several)
    cost = costs(given.spikes / len(several) * probed.taken, taken)
    return {"images": len(data), "classes": len(data.classes), "cost": cost}


def main() -> None:
    """Measure, print and add to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--spikes", type=int, required=True)
    parser.add_argument("--samples", type=int, default=128, help="images in the Hessian batch")
    parser.add_argument("--per-class", type=int, help="calibration images of each class at most")
    parser.add_argument("--random", action="store_true", help="random directions: cost alone, quickly")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    found = (examine_random if given.random else examine)(given)
    found |= {"threads": torch.get_num_threads(), "device": given.device, "torch": torch.__version__}
    print(json.dumps(found, indent=1))
    known = json.loads(given.out.read_text()) if given.out.exists() else {}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(known | {f"{given.checkpoint.stem}, K={given.spikes}": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
