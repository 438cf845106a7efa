"""Small nets in float64, whose Hessians fit in memory, and a net trained on digits."""

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import hessian_surgery as hs
from hessian_surgery.baselines.outputs import ModelOutputs
from hessian_surgery.cli.inputs import open_model
from hessian_surgery.cli.main import main
from hessian_surgery.cli.options import InputOptions
from hessian_surgery.comparison.compared_model import ComparedModel, compute_outputs
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.data.sources import Parts, open_data
from hessian_surgery.data.splits import join_sets
from hessian_surgery.evidence.accuracies import rates, soft_rates
from hessian_surgery.evidence.leading_outputs import leading_outputs
from hessian_surgery.model.smallnet import SmallNet, train_smallnet
from hessian_surgery.operation.goal import Goal
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.surrogate import Surrogate
from hugging_face_folders import make_folders

# Here and in processes that tests start: what is done before the first import of torchvision.
SITE = str(Path(__file__).parent / "site")
sys.path.append(SITE)
importlib.import_module("torchvision_operators")
os.environ["PYTHONPATH"] = os.pathsep.join([SITE, *filter(None, [os.environ.get("PYTHONPATH")])])

SHARED = Path(os.environ.get("HESSIAN_SURGERY_SHARED", Path(__file__).parents[2] / "shared"))


class Attention(nn.Module):
    """One attention head over three tokens; its fused kernel has no second derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 12)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(x.unflatten(1, (3, 4))).chunk(3, dim=-1)
        return self.fc(nn.functional.scaled_dot_product_attention(q, k, v).mean(dim=1))


def conv_net() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3))


def batchnorm_net() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 4), nn.BatchNorm1d(4), nn.Softplus(), nn.Dropout(0.5), nn.Linear(4, 3))


NETS = {"conv": conv_net, "batchnorm": batchnorm_net, "attention": Attention}


@pytest.fixture(params=NETS)
def net(request: pytest.FixtureRequest) -> nn.Module:
    """A small net in float64, in training mode, with BatchNorm statistics from a batch."""
    return build(request.param)


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    module = NETS[name]().double()
    module(torch.randn(32, 12, dtype=torch.float64))
    return module


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    """Ten samples of three classes."""
    torch.manual_seed(1)
    return torch.randn(10, 12, dtype=torch.float64), torch.arange(10) % 3


def dense_hessian(module: nn.Module, inputs: Tensor, labels: Tensor, names: list[str] | None = None) -> Tensor:
    """The full Hessian of the mean cross-entropy, by torch.func, in evaluation mode."""
    module = module.eval()
    chosen = {n: p.detach() for n, p in module.named_parameters() if names is None or n in names}
    sizes = [p.numel() for p in chosen.values()]

    def loss(flat: Tensor) -> Tensor:
        pieces = flat.split(sizes)
        weights = {n: piece.view_as(p) for (n, p), piece in zip(chosen.items(), pieces, strict=True)}
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            logits = torch.func.functional_call(module, weights, (inputs,))
        return nn.functional.cross_entropy(logits, labels)

    return torch.func.hessian(loss)(torch.cat([p.reshape(-1) for p in chosen.values()]))


@pytest.fixture(scope="session")
def digits_parts() -> Parts:
    """The demo's data, seed 0."""
    return open_data("digits", seed=0)


@pytest.fixture(scope="session")
def _trained(digits_parts: Parts) -> dict[str, Tensor]:
    return train_smallnet(digits_parts.training, seed=0).state_dict()


@pytest.fixture
def trained(_trained: dict[str, Tensor]) -> SmallNet:
    """The demo's net, trained; a fresh copy for each test."""
    module = SmallNet(10)
    module.load_state_dict(_trained)
    return module.eval()


@pytest.fixture(scope="session")
def digits_images(digits_parts: Parts) -> LabelledSet:
    """All labelled images that the demo's net was not trained on."""
    return join_sets(digits_parts.calibration, digits_parts.heldout)


@pytest.fixture(scope="session")
def examined(
    _trained: dict[str, Tensor], digits_parts: Parts, digits_images: LabelledSet
) -> tuple[hs.Classifier, ModelOutputs]:
    """The demo's net and what a comparison computes about it once; do not change it."""
    module = SmallNet(10)
    module.load_state_dict(_trained)
    classifier = hs.Classifier(module.eval())
    config = hs.SurgeryConfig(search=hs.SpikeSearch(hessian_samples=64))
    model = ComparedModel(classifier, digits_images, digits_parts.training, config)
    return classifier, compute_outputs(model, ("spikes", "random:4", "class-gradients"), Observer())


@pytest.fixture
def quick() -> hs.LoopConfig:
    """A short loop."""
    return hs.LoopConfig(iterations=3, search=hs.SpikeSearch(hessian_samples=64), seed=0)


# Where three overlapping classes in the plane lie.
MEANS = torch.tensor([[0.0, 0.0], [1.5, 0.0], [0.0, 1.5]])


def points(count: int, seed: int) -> hs.LabelledSet:
    """So many points of each of three overlapping classes in the plane."""
    labels = torch.arange(3).repeat_interleave(count)
    drawn = torch.randn(len(labels), 2, generator=torch.Generator().manual_seed(seed))
    return hs.as_labelled((MEANS[labels] + drawn, labels), classes=["ant", "bee", "cat"])


def operate(model: nn.Module, parts: Parts, config: hs.OperationConfig, **options: object) -> hs.Outcome:
    """Operate with all three parts."""
    return hs.operate(
        model,
        training_data=parts.training,
        calibration_data=parts.calibration,
        heldout_data=parts.heldout,
        config=config,
        **options,
    )


@pytest.fixture
def checkpoint(trained: SmallNet, tmp_path: Path) -> str:
    """The trained net in a float16 file."""
    path = tmp_path / "base.safetensors"
    save_file({name: t.half() if t.is_floating_point() else t for name, t in trained.state_dict().items()}, path)
    return str(path)


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in the test's own folder, on a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the command line in this process; returns the exit code."""

    def call(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["hessian-surgery", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code or 0

    return call


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real data and checkpoints; the test is skipped if they are absent."""
    if not (SHARED / "checkpoints").is_dir():
        pytest.skip(f"no real data and checkpoints at {SHARED} (set HESSIAN_SURGERY_SHARED)")
    return SHARED


def real(shared: Path, name: str) -> tuple[nn.Module, Parts]:
    """A real checkpoint's ResNet-50 and its data."""
    options = InputOptions(
        model="resnet50",
        checkpoint=shared / "checkpoints" / f"resnet50-{name}.safetensors",
        data=f"parquet:{shared / 'data' / name}",
        device="cpu",
    )
    opened = open_model(options)
    return opened.model, opened.parts


def whole_changes(directions, width: int) -> Tensor:
    """The logit changes (K, N, C) along directions other than biases; 0 where none is kept."""
    outputs = directions.outputs.expand(len(directions.changes), -1, -1)
    empty = directions.changes.new_zeros(*directions.changes.shape[:2], width)
    return empty.scatter(2, outputs, directions.changes)


def make_surrogate(logits: Tensor, labels: Tensor, changes: Tensor, shift: float = 0.0, leading: int = 16) -> Surrogate:
    """A linear model of logits (n, C), from changes (K, n, C) along directions, and from biases."""
    outputs = leading_outputs(logits, labels, leading)
    width = logits.shape[1]
    return Surrogate(
        logits=logits,
        labels=labels,
        classes=width,
        outputs=outputs,
        changes=changes.gather(2, outputs.expand(len(changes), -1, -1)),
        shifts=torch.full((width,), shift, dtype=logits.dtype) if shift else None,
    )


def logits_at(surrogate: Surrogate, coefficients) -> Tensor:
    """All logits (n, C) after a step (K,), where all are modelled."""
    c = torch.as_tensor(coefficients, dtype=surrogate.logits.dtype)[None]
    return torch.empty_like(surrogate.logits).scatter(1, surrogate.outputs, surrogate.at(c)[0])


def soft_objective(logits: Tensor, labels: Tensor, classes: int, temperature: float, price: float) -> Tensor:
    """The objective of a fit without limits: soft σ minus the price times soft accuracy."""
    soft = soft_rates(logits, labels, classes, temperature)
    goal = Goal("sigma", 0.0, np.full(classes, -np.inf))
    return goal.soft(rates(logits, labels, classes), soft[1].detach())(*soft, price)


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Folders of tiny Hugging Face models and their data, for tests that are skipped without."""
    return make_folders(tmp_path_factory.mktemp("hugging-face"))
