"""Workbench: one data set, its network, and what several items share."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from hessian_surgery.baselines.finetune import FinetuneConfig, choose_finetune, finetune
from hessian_surgery.data.images import Preprocessing
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.data.readers.digits import digits
from hessian_surgery.data.sources import Parts, Source, open_source
from hessian_surgery.data.splits import stratified_split
from hessian_surgery.files import making
from hessian_surgery.model.build import build_model
from hessian_surgery.model.classifier import as_classifier
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.model.smallnet import train_smallnet
from hessian_surgery.operation.observer import Observer
from hessian_surgery.reproduce.starts import Start
from hessian_surgery.sealed import read_sealed, write_sealed
from hessian_surgery.weights.checkpoint import load_weights, read_checkpoint
from hessian_surgery.weights.tensorfile import save_tensors

# What a `--quick` run takes of each thing that a full run takes more of.
QUICK_EPOCHS = 1


@dataclass(frozen=True)
class Workbench:
    """What an item works with on one data set.

    Attributes:
        dataset: "cifar10", "cifar100" or "skin"; what the paper's numbers are about.
        start: the data and the network.
        device: where the network is.
        folder: where what is computed once is kept: trainings and operations.
        quick: the digits stand for every data set, with settings that take seconds.
        observer: told about progress.
    """

    dataset: str
    start: Start
    device: torch.device
    folder: Path
    quick: bool = False
    observer: Observer = field(default_factory=Observer)

    def number(self, full: int, quick: int) -> int:
        """A setting: the paper's, or a smaller one in a quick run."""
        return quick if self.quick else full

    @cached_property
    def source(self) -> Source:
        """The data, read once."""
        checkpoint = read_checkpoint(self.start.checkpoint) if self.start.checkpoint else None
        known = checkpoint.normalization() if checkpoint else None
        chosen = Preprocessing()
        if known is not None:
            chosen = replace(chosen, mean=tuple(known[0]), std=tuple(known[1]))
        return open_source(self.start.data, 0, chosen)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.source.part("train", "data").classes

    def parts(self, split: int) -> Parts:
        """Training images, and the test images halved by the seed `split`."""
        calibration, heldout = stratified_split(self.source.part("test", "data"), (0.5, 0.5), split)
        return Parts(self.source.part("train", "data"), calibration, heldout)

    def model(self, training: str = "") -> nn.Module:
        """A fresh copy of the network, in evaluation mode.

        Args:
            training: a fine-tune that it had: "focal", "class-balanced" or "" for none.
        """
        weights = self._finetuned(training) if training else self._base
        module = self._build()
        module.load_state_dict(weights)
        return module.to(self.device).eval()

    def logits(self, data: LabelledSet, training: str = "") -> Tensor:
        """Logits (n, C) of some of the test images; the network sees each of them once.

        Args:
            data: part of the test images, such as a half of them.
            training: that of `model`.
        """
        test = self.source.part("test", "data")
        if training not in self._logits:
            self._logits[training] = compute_logits(as_classifier(self.model(training)), test)
        place = {index: position for position, index in enumerate(test.index.tolist())}
        return self._logits[training][[place[index] for index in data.index.tolist()]]

    @cached_property
    def _logits(self) -> dict[str, Tensor]:
        """Logits (N, C) of all test images, by training."""
        return {}

    def once(self, name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What `compute` gives, computed once and then read from `name`.json in the folder.

        Raises:
            InUse: another process is computing it.
        """
        path = self.folder / f"{name}.json"
        with making(path) as missing:
            if missing:
                write_sealed(path, compute())
        return read_sealed(path, "out")

    def finetuned(self, name: str, weights: dict[str, Tensor], config: FinetuneConfig) -> dict[str, Tensor]:
        """The weights after training from `weights`; computed once, and kept under this name."""
        path = self.folder / f"{name}.safetensors"
        with making(path) as missing:
            if missing:
                module = self._build()
                module.load_state_dict(weights)
                module.to(self.device)
                config = replace(config, epochs=QUICK_EPOCHS, head_epochs=0) if self.quick else config
                finetune(module, self.source.part("train", "data"), config, folder=self.folder / f"{name}-state")
                save_tensors(path, module.state_dict())
        return load_file(path)

    def _build(self) -> nn.Module:
        return build_model(self.start.model, len(self.classes))

    @cached_property
    def _base(self) -> dict[str, Tensor]:
        """The starting weights."""
        if self.start.checkpoint is None:
            return digits_weights()
        module = self._build()
        load_weights(module, read_checkpoint(self.start.checkpoint))
        return module.state_dict()

    def _finetuned(self, training: str) -> dict[str, Tensor]:
        train = self.source.part("train", "data")
        return self.finetuned(training, self._base, choose_finetune(training, train))


@cache
def digits_weights() -> dict[str, Tensor]:
    """The weights of the demo's net, trained once; quick runs of all data sets start from it."""
    return train_smallnet(digits(0).train, 0).state_dict()
