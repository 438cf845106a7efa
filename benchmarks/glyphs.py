"""A thousand classes that anyone can make: characters in the fonts of Debian packages.

A long-tailed training set, a balanced test set, half of it in fonts that no training image is in,
and a small ResNet for them.

python -m benchmarks.glyphs --out glyphs
hessian-surgery train --data parquet:glyphs --model benchmarks.glyphs:network --epochs 30 \\
    --batch-size 512 --learning-rate 0.2 --shift 1 --no-flip --out glyphs/glyphs.safetensors
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from benchmarks.glyph_characters import OTHER_FONTS, TRAINING_FONTS, choose_characters, open_fonts
from benchmarks.glyph_images import TEST, TRAINING, draw_images, sheet
from hessian_surgery.errors import InputError
from hessian_surgery.files import written_beside
from hessian_surgery.model.resnet import BasicBlock
from hessian_surgery.seeding import numpy_generator

CLASSES = 1000
# Training images of the most common class and of the rarest: about 60,000 of 1,000 classes.
MOST, FEWEST = 155, 15
# Test images of each class.
TEST_IMAGES = 40
# Images in the contact sheet, and in a row of it.
SHEET, COLUMNS = 800, 40


def make(out: Path, classes: int = CLASSES, seed: int = 0) -> None:
    """Write `train.parquet`, `test.parquet` and `sheet.png` (test images) to a folder."""
    training, other = open_fonts(TRAINING_FONTS), open_fonts(OTHER_FONTS)
    characters = choose_characters(training, other, classes)
    counts = long_tail(classes, seed)
    train = [draw_images(c, training, TRAINING, n, (seed, 0)) for c, n in zip(characters, counts, strict=True)]
    test = [draw_images(c, [*training, *other], TEST, TEST_IMAGES, (seed, 1)) for c in characters]
    names = [f"U+{ord(character):04X} {character}" for character in characters]
    write_part(out / "train.parquet", train, names, seed)
    shown = write_part(out / "test.parquet", test, names, seed)[:SHEET]
    with written_beside(out / "sheet.png") as beside:
        sheet(shown, COLUMNS).save(beside, "PNG")


def long_tail(classes: int, seed: int) -> list[int]:
    """Training images of each class: exponentially fewer, the classes in random order."""
    counts = np.rint(np.geomspace(MOST, FEWEST, classes)).astype(int)
    return numpy_generator(seed, "glyphs-tail").permutation(counts).tolist()


def write_part(path: Path, images: Sequence[Sequence[bytes]], names: Sequence[str], seed: int) -> list[bytes]:
    """Write the images of each class, shuffled, in Hugging Face's layout; return them in order."""
    labels = np.repeat(np.arange(len(images)), [len(some) for some in images])
    order = numpy_generator(seed, f"glyphs-{path.stem}").permutation(len(labels))
    joined = [image for some in images for image in some]
    shuffled = [joined[i] for i in order]
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": list(names)}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    columns = {
        "image": pa.array([{"bytes": image} for image in shuffled], pa.struct([("bytes", pa.binary())])),
        "label": pa.array(labels[order], pa.int64()),
    }
    with written_beside(path) as beside:
        pq.write_table(pa.table(columns).replace_schema_metadata(metadata), beside, compression="zstd")
    return shuffled


class GlyphNet(nn.Module):
    """A ResNet-8 for images of 24×24: three residual blocks of 64, 128 and 256 channels.

    1.2 million weights, and 257 for each class. The three channels of a grey image are alike, so it
    reads the first.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(32)
        self.layers = nn.Sequential(BasicBlock(32, 64, 2), BasicBlock(64, 128, 2), BasicBlock(128, 256, 2))
        self.fc = nn.Linear(256, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, 3, h, w) → logits (n, num_classes)."""
        out = self.layers(torch.relu(self.bn1(self.conv1(x[:, :1]))))
        logits: Tensor = self.fc(out.mean(dim=(2, 3)))
        return logits


def network(classes: int = CLASSES) -> GlyphNet:
    """The network, for `--model benchmarks.glyphs:network`."""
    return GlyphNet(classes)


def main() -> None:
    """Make the set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder")
    parser.add_argument("--classes", type=int, default=CLASSES)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    try:
        make(given.out, given.classes, given.seed)
    except InputError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
