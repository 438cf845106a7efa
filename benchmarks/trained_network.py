"""Command-line options for a trained network and its images, which several benchmarks take."""

import argparse
from pathlib import Path

from hessian_surgery.cli.inputs import OpenedModel, open_model
from hessian_surgery.cli.options import InputOptions


def network_parser(description: str | None, results: Path) -> argparse.ArgumentParser:
    """A parser of the options that name a network, its images, a device and the file to write."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=results)
    return parser


def open_network(given: argparse.Namespace) -> OpenedModel:
    """Open the network and the images that were given."""
    options = InputOptions(model=given.model, checkpoint=given.checkpoint, data=given.data, device=given.device)
    return open_model(options)
