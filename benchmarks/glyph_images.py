"""Glyphs as small, distorted images: what `benchmarks.glyphs` writes."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageFilter

from benchmarks.glyph_characters import CANVAS, EM, Face

# Side of an image, in pixels; it is distorted at twice that size.
SIDE = 24


@dataclass(frozen=True)
class Distortion:
    """How far images of a part are distorted; each draws its own, evenly from these ranges.

    Attributes:
        em: height of the em square, in pixels, from and to.
        slant: largest shear to either side, in pixels per pixel.
        turn: largest rotation to either side, in degrees.
        shift: largest shift in each direction, in pixels.
        blur: largest radius of a Gaussian blur, in pixels.
        paper: brightest ground, of 255.
        ink: how much brighter than the ground a glyph is, of 255, from and to.
        noise: standard deviation of each pixel's noise, of 255, from and to.
    """

    em: tuple[float, float]
    slant: float = 0.25
    turn: float = 12.0
    shift: float = 1.5
    blur: float = 0.9
    paper: float = 90.0
    ink: tuple[float, float] = (80.0, 165.0)
    noise: tuple[float, float] = (4.0, 26.0)


TRAINING = Distortion(em=(18.0, 24.0))
TEST = Distortion(em=(15.0, 23.0))


def draw_images(
    character: str, faces: Sequence[Face], how: Distortion, count: int, entropy: Sequence[int]
) -> list[bytes]:
    """Draw a character `count` times, each in a font by chance, as PNG files.

    Args:
        character: what to draw.
        faces: the fonts; those without the character are left out.
        how: the distortion.
        count: how many images.
        entropy: fixes the random numbers, together with the character.
    """
    draw = np.random.default_rng([*entropy, ord(character)])
    glyphs = [face.draw(character) for face in faces if face.has(character)]
    return [_encode(distort(glyphs[draw.integers(len(glyphs))], how, draw)) for _ in range(count)]


def distort(glyph: Image.Image, how: Distortion, draw: np.random.Generator) -> Image.Image:
    """Distort a glyph on its canvas to an image of `SIDE` pixels."""
    em = draw.uniform(*how.em)
    slant, dx, dy = draw.uniform(-1, 1, size=3) * (how.slant, how.shift, how.shift)
    turn = np.radians(draw.uniform(-how.turn, how.turn))
    rotation = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    # From a place in the image, at twice its size, to the place on the canvas that is seen there.
    matrix = EM / (2 * em) * np.array([[1.0, slant], [0.0, 1.0]]) @ rotation
    middle = CANVAS / 2 - matrix @ np.array([SIDE + 2 * dx, SIDE + 2 * dy])
    place = (*matrix[0], middle[0], *matrix[1], middle[1])
    large = glyph.transform((2 * SIDE, 2 * SIDE), Image.Transform.AFFINE, place, Image.Resampling.BICUBIC)
    small = large.filter(ImageFilter.GaussianBlur(2 * draw.uniform(0, how.blur))).reduce(2)
    noise = draw.uniform(*how.noise) * draw.standard_normal((SIDE, SIDE))
    pixels = draw.uniform(0, how.paper) + draw.uniform(*how.ink) / 255 * np.asarray(small, float) + noise
    return Image.fromarray(np.clip(np.rint(pixels), 0, 255).astype(np.uint8))


def sheet(images: Sequence[bytes], columns: int) -> Image.Image:
    """A contact sheet of images, by rows, at twice their size."""
    rows = -(-len(images) // columns)
    whole = Image.new("L", (columns * SIDE, rows * SIDE))
    for i, image in enumerate(images):
        whole.paste(Image.open(io.BytesIO(image)), (i % columns * SIDE, i // columns * SIDE))
    return whole.resize((2 * whole.width, 2 * whole.height), Image.Resampling.NEAREST)


def _encode(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
