"""Where each data set and its trained network are, and what to do if they are not there."""

from dataclasses import dataclass
from pathlib import Path

from hessian_surgery.errors import InputError

# Of each data set: folder names that are looked for, and where it can be had.
WHERE = {
    "cifar10": (("cifar10",), "https://huggingface.co/datasets/uoft-cs/cifar10, as parquet"),
    "cifar100": (("cifar100",), "https://huggingface.co/datasets/uoft-cs/cifar100, as parquet"),
    "skin": (
        ("isic2019", "ham10000"),
        "https://challenge.isic-archive.com/data (ISIC-2019), or HAM10000 as parquet with train and test parts",
    ),
}


@dataclass(frozen=True)
class Start:
    """A data set and the network that was trained on it.

    Attributes:
        data: spec, such as `parquet:cifar10`.
        model: the network's name.
        checkpoint: file of its weights; None for a small net that is trained at once.
    """

    data: str
    model: str
    checkpoint: Path | None

    def named(self) -> dict[str, str]:
        """What results say about it: names, without the folders of the machine that it was on."""
        kind, colon, place = self.data.partition(":")
        weights = "" if self.checkpoint is None else self.checkpoint.name
        return {"data": f"{kind}{colon}{Path(place).name}", "model": self.model, "checkpoint": weights}


QUICK = Start("digits", "smallnet", None)


def find_start(dataset: str, sources: Path | None, data: str | None, checkpoint: Path | None, model: str) -> Start:
    """Find the data and the checkpoint of one data set.

    Args:
        dataset: "cifar10", "cifar100" or "skin".
        sources: folder that holds all data sets and checkpoints, or holds `data` and `checkpoints`.
        data: spec that overrides it.
        checkpoint: file that overrides it.
        model: the network.

    Raises:
        InputError: something is missing; the message says where to get it.
    """
    folder = None
    if data is None:
        folder = _data_folder(dataset, sources)
        data = f"{'isic' if folder.name == 'isic2019' else 'parquet'}:{folder}"
    if checkpoint is None:
        checkpoint = _checkpoint(folder.name if folder else dataset, sources, data, model)
    elif not checkpoint.is_file():
        raise InputError(f"checkpoint: {checkpoint} is not a file; give one that is, or make it with train")
    return Start(data, model, checkpoint)


def _data_folder(dataset: str, sources: Path | None) -> Path:
    names, place = WHERE[dataset]
    if sources is None:
        raise InputError(
            f"sources: missing; give a folder with {' or '.join(names)} (get it from {place}) and its checkpoint, "
            "or data and checkpoint"
        )
    for folder in (sources / name for name in names):
        for found in (folder, sources / "data" / folder.name):
            if found.is_dir():
                return found
    raise InputError(f"sources: {sources} has no folder {' or '.join(names)}; get it from {place}, or give data")


def _checkpoint(name: str, sources: Path | None, data: str, model: str) -> Path:
    file = f"{model}-{name}.safetensors"
    places = [] if sources is None else [sources / file, sources / "checkpoints" / file]
    for found in places:
        if found.is_file():
            return found
    target = places[0] if places else Path(file)
    raise InputError(
        f"checkpoint: {target} is not there; give one, or make it: "
        f"hessian-surgery train --data {data} --model {model} --out {target}"
    )
