"""Networks of timm and torchvision by name, and a pretrained EfficientNet-Lite0, operated on.

Each is trained on the images, and then goes through `operate` on several halves of the test part.

python -m benchmarks.ecosystems --data parquet:ham10000 --weights lite0.safetensors --device cuda

`benchmarks/efficientnet_lite.py` says where the weights come from; without them that network is
left out. A library that is not installed is named in the results, and left out.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import nn

import hessian_surgery as hs
from benchmarks.efficientnet_lite import MEAN, STD, pretrained
from hessian_surgery.cli.inputs import open_model
from hessian_surgery.cli.options import InputOptions
from hessian_surgery.data.images import Preprocessing
from hessian_surgery.data.sources import Parts, open_data
from hessian_surgery.data.splits import join_sets
from hessian_surgery.model.vision import build_vision, find_vision
from hessian_surgery.operation.environment import environment
from hessian_surgery.weights.tensorfile import save_tensors

RESULTS = Path(__file__).parent / "results" / "ecosystems.json"
NAMES = ("timm:resnet18", "timm:regnetx_002", "torchvision:mobilenet_v3_small")
LITE = "efficientnet-lite0"
# The network with ImageNet's weights sees larger images, and is trained in smaller steps.
SIZE, LITE_SIZE = 64, 128
RATES = {LITE: 0.02}
# The weights of its depthwise convolutions, which move alone in one run.
DEPTHWISE = "*_depthwise_conv.weight"
# Halves of the test part that the default operation is run on; one more is run along spikes too.
HALVES = 3


@dataclass(frozen=True)
class Case:
    """A network to train and to operate on.

    Attributes:
        name: as `--model` takes it, or `LITE`.
        module: on its device.
        training: images to train on, in memory.
        test: the other images, which are halved.
    """

    name: str
    module: nn.Module
    training: hs.LabelledSet
    test: hs.LabelledSet


def make_case(name: str, module: nn.Module, parts: Parts, cap: int | None) -> Case:
    """A case with all images, or with at most `cap` of a class in each part."""
    every = (parts.training, parts.calibration, parts.heldout)
    training, first, second = (part if cap is None else hs.cap_per_class(part, cap) for part in every)
    return Case(name, module, training.resident(), join_sets(first, second))


def named_case(name: str, given: argparse.Namespace) -> Case:
    """A network of timm or torchvision, opened as the command line opens it."""
    found = find_vision(name)
    assert found is not None
    classes = len(open_data(given.data).training.classes)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "start.safetensors"
        save_tensors(weights, build_vision(found, classes, None).state_dict())
        options = InputOptions(
            model=name, checkpoint=weights, data=given.data, image_size=given.size, device=given.device
        )
        opened = open_model(options)
    return make_case(name, opened.model, opened.parts, given.cap)


def lite_case(given: argparse.Namespace) -> Case:
    """The network with ImageNet's weights, and a new head."""
    size = LITE_SIZE if given.size == SIZE else given.size
    parts = open_data(given.data, 0, Preprocessing(mean=MEAN, std=STD, size=size))
    module = pretrained(given.weights, len(parts.training.classes)).to(given.device)
    return make_case(LITE, module, parts, given.cap)


def cases(given: argparse.Namespace) -> Iterator[Case | dict[str, Any]]:
    """Every case; for one that cannot be opened, a record that says why."""
    for name in given.cases.split(","):
        try:
            if name == LITE and given.weights is None:
                raise hs.InputError("weights: give --weights, as benchmarks/efficientnet_lite.py writes them")
            yield lite_case(given) if name == LITE else named_case(name, given)
        except hs.InputError as reason:
            yield {"case": name, "left_out": str(reason)}


def figures(outcome: hs.Outcome, config: hs.SurgeryConfig, seconds: float) -> dict[str, Any]:
    """What an operation did to the held-out images."""
    kept = ("accuracy", "balanced_accuracy", "sigma", "worst")
    before, after = ({k: one.as_dict()[k] for k in kept} for one in outcome.findings.heldout.metrics())
    return {
        "seed": config.seed,
        "directions": config.directions,
        "parameters": config.parameters,
        "before": before,
        "after": after,
        "verdict": outcome.verdict.outcome,
        "changed": str(outcome.findings.changed),
        "seconds": round(seconds, 2),
    }


def operate(case: Case, state: dict[str, torch.Tensor], config: hs.SurgeryConfig) -> dict[str, Any]:
    """Operate on the trained network, on the halving of the test images that the seed gives."""
    case.module.load_state_dict(state)
    calibration, heldout = hs.stratified_split(case.test, (0.5, 0.5), config.seed)
    start = time.perf_counter()
    outcome = hs.operate(
        case.module,
        training_data=case.training,
        calibration_data=calibration,
        heldout_data=heldout,
        config=config,
    )
    return figures(outcome, config, time.perf_counter() - start)


def run(case: Case, given: argparse.Namespace) -> dict[str, Any]:
    """Train a network and operate on it."""
    config = hs.TrainConfig(
        epochs=given.epochs,
        learning_rate=RATES.get(case.name, 0.05),
        batch_size=min(128, len(case.training)),
        shift=4,
        flip=True,
    )
    start = time.perf_counter()
    hs.train(case.module, case.training, config)
    case.module.eval()
    trained = time.perf_counter() - start
    state = {name: tensor.clone() for name, tensor in case.module.state_dict().items()}
    plan = [hs.SurgeryConfig(seed=seed) for seed in range(given.halves)] + [hs.SurgeryConfig(directions="both")]
    plan += [hs.SurgeryConfig(parameters=DEPTHWISE)] if case.name == LITE else []
    return {
        "case": case.name,
        "weights": sum(parameter.numel() for parameter in case.module.parameters()),
        "depthwise": sum(
            isinstance(layer, nn.Conv2d) and layer.groups == layer.in_channels > 1 for layer in case.module.modules()
        ),
        "image_size": case.training.fetch(torch.arange(1)).shape[-1],
        "training_images": len(case.training),
        "epochs": given.epochs,
        "training_seconds": round(trained, 2),
        "runs": [operate(case, state, config) for config in plan],
    }


def table(done: list[dict[str, Any]]) -> str:
    """The results as a table in Markdown: means over the halves, and the other runs."""
    lines = ["| network | weights | run | accuracy, % | σ, pp | worst class, % | s |", "|---|---|---|---|---|---|---|"]
    for case in done:
        kinds = dict.fromkeys((run["directions"], run["parameters"]) for run in case.get("runs", ()))
        for kind in kinds:
            same = [run for run in case["runs"] if (run["directions"], run["parameters"]) == kind]
            cells = [
                " → ".join(f"{100 * mean(run[when][name] for run in same):.2f}" for when in ("before", "after"))
                for name in ("accuracy", "sigma", "worst")
            ]
            words = f"{kind[0]}, {kind[1]}, {len(same)} halves" if kind[1] != "*" else f"{kind[0]}, {len(same)} halves"
            seconds = f"{mean(run['seconds'] for run in same):.1f}"
            lines.append("| " + " | ".join((case["case"], f"{case['weights']:,}", words, *cells, seconds)) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run every case; write the results after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cases", default=",".join((*NAMES, LITE)))
    parser.add_argument("--size", type=int, default=SIZE)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--halves", type=int, default=HALVES)
    parser.add_argument("--cap", type=int, help="images of a class in each part, for a trial")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    done: list[dict[str, Any]] = []
    for case in cases(given):
        start = time.perf_counter()
        try:
            done.append(run(case, given) if isinstance(case, Case) else case)
        except RuntimeError as error:  # the other cases are run all the same
            done.append(
                {"case": case.name if isinstance(case, Case) else "", "left_out": str(error).partition("\n")[0]}
            )
        print(json.dumps(done[-1]), f"{time.perf_counter() - start:.1f} s", flush=True)
        content = {"data": given.data, "environment": environment(torch.device(given.device)), "cases": done}
        given.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(table(done))


if __name__ == "__main__":
    main()
