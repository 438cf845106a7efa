"""Checks that data must pass: every class has images, and no two parts hold the same samples."""

from hashlib import sha1

import torch
from torch import Tensor

from hessian_surgery.data import batches
from hessian_surgery.data.labelled import CHUNK, LabelledSet
from hessian_surgery.errors import InputError


def require_images(labels: Tensor, classes: tuple[str, ...], argument: str, at_least: int = 1) -> None:
    """Raise an InputError if a class has fewer than `at_least` images.

    Args:
        labels: the true class of each image (n,).
        classes: the class names.
        argument: where the images come from, for the message.
        at_least: images that each class needs.
    """
    counts = torch.bincount(labels.cpu(), minlength=len(classes)).tolist()
    for name, count in zip(classes, counts, strict=True):
        if count < at_least:
            found = f"{count or 'no'} image{'s' if count > 1 else ''}"
            raise InputError(f"{argument}: class {name!r} has {found}; give at least {at_least} of each class")


def refuse_overlap(calibration: LabelledSet, other: LabelledSet, argument: str) -> None:
    """Raise an InputError if the calibration data holds most samples of another set.

    `argument` says where the other set comes from.
    """
    common = count_common(calibration, other)
    if 2 * common > len(other):
        raise InputError(
            f"{argument}: {common} of its {len(other)} samples are in the calibration data as well; give other ones"
        )


def count_common(first: LabelledSet, second: LabelledSet) -> int:
    """Count the samples of the second set whose inputs are in the first set too, bit for bit."""
    known = set(_hashes(first))
    return sum(found in known for found in _hashes(second))


def _hashes(data: LabelledSet) -> list[bytes]:
    """A hash of each sample's inputs."""
    found: list[bytes] = []
    for chunk in torch.arange(len(data)).split(CHUNK):
        parts = [tensor.cpu().contiguous() for tensor in batches.tensors(data.fetch(chunk))]
        rows = [part.reshape(len(chunk), -1).view(torch.uint8).numpy() for part in parts]
        found += [sha1(b"".join(row[i].tobytes() for row in rows)).digest() for i in range(len(chunk))]
    return found
