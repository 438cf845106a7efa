"""Turn images into inputs, for every reader of image files."""

import io
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.errors import FileError, InputError
from hessian_surgery.seeding import generator
from hessian_surgery.type_check import require_types

# Images that means and standard deviations of channels are taken from, at most.
MEASURED = 1000

# What is read: no format that other programs would be run for, such as PostScript.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
# Sides and pixels of an image, at most: a small file can hold billions of equal pixels.
LARGEST_SIDE = 4096
MOST_PIXELS = 89_000_000
WHOLE_PIXELS = 2048 * 2048


@dataclass(frozen=True)
class Preprocessing:
    """Convert images to RGB, resize them to a square, divide pixels by 255, normalise each channel.

    Attributes:
        mean: what is subtracted from each channel.
        std: what each channel is then divided by.
        size: side of the square in pixels; None keeps the size, which all images must share.
    """

    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    size: int | None = None

    def __post_init__(self) -> None:
        require_types(self)
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != 3:
                raise InputError(f"{name}: got {values}; give three numbers, one for each channel")
            if max(values) > 2:
                raise InputError(f"{name}: got {values}; pixels lie between 0 and 1, so divide it by 255")
        if min(self.std) <= 0:
            raise InputError(f"std: got {self.std}; give three numbers above 0")
        if self.size is not None and not 1 <= self.size <= LARGEST_SIDE:
            raise InputError(f"image_size: got {self.size}; give 1 to {LARGEST_SIDE} pixels")

    def decode(self, encoded: bytes, which: str) -> Tensor:
        """Decode an image to pixels (3, h, w) uint8; `which` names it in error messages."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                opened = Image.open(io.BytesIO(encoded), formats=FORMATS)
                self._check_size(opened.size, which)
                image = opened.convert("RGB")
        except InputError:
            raise
        except Exception as error:  # a damaged image can raise anything
            raise FileError(f"data: {which} cannot be read as an image; remove or repair it") from error
        if self.size is not None and image.size != (self.size, self.size):
            image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)

    def _check_size(self, size: tuple[int, int], which: str) -> None:
        """Refuse an image that would take much memory, before its pixels are made."""
        if self.size is None and size[0] * size[1] > WHOLE_PIXELS:
            raise InputError(f"data: {which} has {size[0]}×{size[1]} pixels; give image_size=N, the side that all get")
        if size[0] * size[1] > MOST_PIXELS:
            raise InputError(f"data: {which} has {size[0]}×{size[1]} pixels; give images of at most {MOST_PIXELS:,}")

    def batch(self, encoded: list[bytes], names: list[str]) -> Tensor:
        """Decode images to inputs (n, 3, h, w) float32; `names` are for error messages."""
        decoded = [self.decode(content, name) for content, name in zip(encoded, names, strict=True)]
        sizes = {tuple(image.shape[1:]) for image in decoded}
        if len(sizes) > 1:
            raise InputError(
                f"data: images differ in size, such as {sorted(sizes)[:2]}; give image_size=N, the side that all get"
            )
        return self.normalize(torch.stack(decoded))

    def normalize(self, pixels: Tensor) -> Tensor:
        """Normalise pixels (n, 3, h, w) uint8 to inputs (n, 3, h, w) float32."""
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        return (pixels.float() / 255 - mean) / std


def channel_statistics(data: LabelledSet, seed: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, of images drawn at random; three decimals.

    Args:
        data: images (c, h, w) whose pixels lie between 0 and 1.
        seed: fixes the draw.
    """
    chosen = torch.randperm(len(data), generator=generator(seed, "channels"))[:MEASURED].sort().values
    rows = []  # for each image the mean of its pixels, and of their squares
    for part in chosen.split(64):
        images = data.fetch(part)
        assert isinstance(images, Tensor)
        pixels = images.double().flatten(2)
        rows.append(torch.stack([pixels.mean(dim=2), pixels.square().mean(dim=2)]))
    mean, square = torch.cat(rows, dim=1).mean(dim=1)
    std = (square - mean.square()).sqrt().clamp(min=1e-3)
    return tuple(round(value, 3) for value in mean.tolist()), tuple(round(value, 3) for value in std.tolist())
