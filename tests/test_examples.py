"""The example of every public name runs, and prints what it says.

Examples share a toy: a net for three overlapping classes in the plane, trained on few bees and
fewer cats; sets of points; a finished operation and a finished comparison.
"""

import copy
import doctest
import inspect
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import hessian_surgery as hs
from conftest import points
from extras import extra

# The toy's training images of each class.
COUNTS = (100, 40, 20)
FLAGS = doctest.ELLIPSIS


@pytest.fixture(scope="module")
def toy():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
    train = points(100, 0)
    train = train.subset(torch.cat([100 * j + torch.arange(count) for j, count in enumerate(COUNTS)]))
    optimizer = torch.optim.Adam(net.parameters(), 0.05)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(train.inputs()), train.labels).backward()
        optimizer.step()
    held = {"model": net.eval(), "train": train, "calibration": points(200, 1), "heldout": points(200, 2)}
    parts = {"training_data": train, "calibration_data": held["calibration"], "heldout_data": held["heldout"]}
    protocol = hs.Protocol(methods=("class-bias",), splits=2)
    outcome = hs.operate(copy.deepcopy(net), **parts)
    fronts = hs.compare(net, data=held["calibration"], training_data=train, protocol=protocol)
    return held | {"outcome": outcome, "fronts": fronts, "hs": hs, "torch": torch, "np": np, "Path": Path}


# Examples that need optional packages.
ONNX = ("check_onnx", "patch_onnx")
NAMES = [
    pytest.param(name, marks=extra("onnx", "onnxscript", "onnxruntime") if name in ONNX else ()) for name in hs.__all__
]


@pytest.mark.parametrize("name", NAMES)
def test_the_example_runs(name, toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = inspect.getdoc(getattr(hs, name))
    example = doctest.DocTestParser().get_doctest(text, toy | {"model": copy.deepcopy(toy["model"])}, name, name, 0)
    assert example.examples, "no example"
    said = []
    result = doctest.DocTestRunner(optionflags=FLAGS).run(example, out=said.append)
    assert result.failed == 0, "".join(said)
