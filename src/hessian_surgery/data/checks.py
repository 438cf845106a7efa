"""Check that every class has images."""

import torch
from torch import Tensor

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
            found = f"{count or 'no'} sample{'s' if count > 1 else ''}"
            numbered = "; labels start at 0" if name == "0" and not count else ""
            raise InputError(
                f"{argument}: class {name!r} has {found}; give at least {at_least} of each class{numbered}"
            )
