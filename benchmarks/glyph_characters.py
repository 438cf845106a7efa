"""The 1,000 characters of `benchmarks.glyphs`, and the fonts that they are drawn in."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fontTools.ttLib import TTFont  # comes with matplotlib
from PIL import Image, ImageDraw, ImageFont

from hessian_surgery.errors import InputError
from hessian_surgery.types import Array

FOLDER = Path("/usr/share/fonts")
PACKAGES = (
    "fonts-dejavu fonts-liberation fonts-freefont-ttf fonts-noto-core fonts-noto-mono fonts-noto-cjk fonts-ipafont "
    "fonts-vlgothic fonts-hanazono fonts-wqy-zenhei fonts-wqy-microhei fonts-arphic-uming fonts-arphic-ukai fonts-nanum"
)
# Font files and the faces in them. Training images are drawn in the first only.
TRAINING_FONTS = {
    "DejaVuSans.ttf": 0,
    "DejaVuSerif.ttf": 0,
    "LiberationSans-Regular.ttf": 0,
    "LiberationSerif-Italic.ttf": 0,
    "FreeMono.ttf": 0,
    "NotoSans-Bold.ttf": 0,
    "NotoSansCJK-Regular.ttc": 0,
    "NotoSerifCJK-Regular.ttc": 2,
    "ipag.ttf": 0,
    "ipam.ttf": 0,
    "wqy-zenhei.ttc": 0,
    "uming.ttc": 0,
    "NanumGothic.ttf": 0,
}
OTHER_FONTS = {
    "DejaVuSansMono-Bold.ttf": 0,
    "LiberationSerif-Regular.ttf": 0,
    "FreeSans.ttf": 0,
    "FreeSerif.ttf": 0,
    "NotoSerif-Italic.ttf": 0,
    "NotoSansMono-Regular.ttf": 0,
    "NotoSansCJK-Bold.ttc": 3,
    "NotoSerifCJK-Bold.ttc": 0,
    "VL-Gothic-Regular.ttf": 0,
    "HanaMinA.ttf": 0,
    "wqy-microhei.ttc": 0,
    "ukai.ttc": 0,
    "NanumBarunGothicBold.ttf": 0,
}
# A character must be in this many training fonts, and in as many of the others.
FEWEST_FONTS = 5
# Height of the em square and side of the canvas that a glyph is drawn on, in pixels.
EM = 64
CANVAS = 96
# Where the baseline is, below the middle, as a share of the em: it centres capitals and ideographs.
BASELINE = 0.37
# Two characters are one to the eye if, in the median font, their drawings differ in less than this
# share of their ink (Latin A and Cyrillic А; へ and ヘ).
LOOKALIKE = 0.12


@dataclass(frozen=True)
class Face:
    """A font.

    Attributes:
        name: of its file.
        font: at a size of `EM` pixels.
        codes: the code points that it has glyphs for.
    """

    name: str
    font: ImageFont.FreeTypeFont
    codes: frozenset[int]

    def draw(self, character: str) -> Image.Image:
        """Draw a character, white on black, on a canvas of `CANVAS` pixels."""
        canvas = Image.new("L", (CANVAS, CANVAS))
        at = (CANVAS / 2, CANVAS / 2 + BASELINE * EM)
        ImageDraw.Draw(canvas).text(at, character, fill=255, font=self.font, anchor="ms")
        return canvas

    def has(self, character: str) -> bool:
        """Whether the font has a glyph for a character, with ink in it."""
        return ord(character) in self.codes and self.draw(character).getbbox() is not None


def open_fonts(names: dict[str, int]) -> list[Face]:
    """Open fonts by the names of their files, which may be at any depth."""
    found = {path.name: path for path in sorted(FOLDER.rglob("*")) if path.name in names}
    missing = [name for name in names if name not in found]
    if missing:
        raise InputError(
            f"fonts: {FOLDER} lacks {missing[0]} ({len(missing)} of {len(names)} fonts are missing); "
            f"run apt install {PACKAGES}"
        )
    return [_open(found[name], index) for name, index in names.items()]


def choose_characters(training: Sequence[Face], other: Sequence[Face], count: int) -> list[str]:
    """The first `count` candidates that enough fonts have and that look like no earlier one."""
    chosen: list[str] = []
    seen = np.full((len(training), count, CANVAS * CANVAS // 16), np.nan, np.float32)
    for character in candidates():
        if min(sum(face.has(character) for face in faces) for faces in (training, other)) < FEWEST_FONTS:
            continue
        drawn = np.stack([_sketch(face, character) for face in training])
        if _nearest(drawn, seen[:, : len(chosen)]) < LOOKALIKE:
            continue
        seen[:, len(chosen)] = drawn
        chosen.append(character)
        if len(chosen) == count:
            return chosen
    raise InputError(f"classes: got {count}; there are {len(chosen)} characters that enough fonts have")


def candidates() -> Iterator[str]:
    """Digits, Latin, Greek and Cyrillic letters, kana, then ideographs from few strokes to many.

    The ideographs are those that Big5, GB 2312 and JIS X 0208 have in their first level and that
    KS X 1001 has too, so they are common in every language. Big5 is ordered by strokes.
    """
    yield from "0123456789"
    for first, last in ((0x41, 0xFF), (0x391, 0x3C9), (0x410, 0x44F), (0x3041, 0x3093), (0x30A1, 0x30F4)):
        yield from (chr(code) for code in range(first, last + 1) if chr(code).isalpha())
    common = [
        set(_decoded(*table)) for table in (("gb2312", 0xB0, 0xD7), ("euc_jp", 0xB0, 0xCF), ("euc_kr", 0xCA, 0xFD))
    ]
    ideographs = (character for character in _decoded("big5", 0xA4, 0xC6) if "一" <= character <= "龥")
    yield from (character for character in ideographs if all(character in some for some in common))


def _decoded(encoding: str, first: int, last: int) -> Iterator[str]:
    """The characters of an encoding of two bytes, by rows, the first byte in a range."""
    for lead in range(first, last + 1):
        for trail in range(0x40, 0xFF):
            character = bytes([lead, trail]).decode(encoding, errors="ignore")
            if len(character) == 1:
                yield character


def _open(path: Path, index: int) -> Face:
    font = ImageFont.truetype(path, EM, index=index, layout_engine=ImageFont.Layout.BASIC)
    with TTFont(path, fontNumber=index, lazy=True) as tables:
        return Face(path.name, font, frozenset(tables.getBestCmap()))


def _sketch(face: Face, character: str) -> Array:
    """A small drawing (CANVAS² / 16,) in 0..1; NaN if the font lacks the character."""
    if not face.has(character):
        return np.full(CANVAS * CANVAS // 16, np.nan, np.float32)
    return np.asarray(face.draw(character).reduce(4), np.float32).ravel() / 255


def _nearest(drawn: Array, seen: Array) -> float:
    """How far a character (fonts, pixels) is from the nearest of others (fonts, n, pixels)."""
    if seen.shape[1] == 0:
        return np.inf
    differ = np.abs(drawn[:, None] - seen).sum(axis=2)
    ink = np.maximum(drawn[:, None], seen).sum(axis=2)
    # Fonts that lack one of the two are NaN, and do not count.
    return float(np.nanmin(np.nanmedian(differ / ink, axis=0)))
