"""The demo's data: scikit-learn's digits (1,797 images of 8×8), made long-tailed and noisy."""

from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits

from hessian_surgery.data.labelled import LabelledSet, as_labelled
from hessian_surgery.data.splits import long_tailed, stratified_split
from hessian_surgery.seeding import generator


@dataclass(frozen=True)
class DigitsTask:
    """A long-tailed train part and a balanced test part, both with Gaussian noise on the pixels."""

    train: LabelledSet
    test: LabelledSet


def digits(seed: int = 0, *, train_share: float = 0.4, tail: float = 0.05, noise: float = 0.2) -> DigitsTask:
    """Make the digits task.

    Args:
        seed: fixes the parts, the order of the classes along the tail and the noise.
        train_share: share of the images for training, before the tail is cut.
        tail: share of its training images that the rarest class keeps (`long_tailed`).
        noise: standard deviation of the noise, in units of the full pixel range.

    Example:
        >>> task = hs.digits(seed=0)
        >>> len(task.train.classes), len(task.train) < len(task.test)
        (10, True)
    """
    raw = load_digits()
    images = torch.tensor(raw.images, dtype=torch.float32)[:, None] / 16
    images += noise * torch.randn(images.shape, generator=generator(seed, "digits-noise"))
    everything = as_labelled((images, torch.tensor(raw.target)), classes=[str(i) for i in range(10)])
    train, test = stratified_split(everything, (train_share, 1 - train_share), seed)
    return DigitsTask(long_tailed(train, tail, seed), test)
