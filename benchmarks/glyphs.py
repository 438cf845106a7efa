"""A thousand classes that anyone can make: characters in the fonts of Debian packages.

`make` writes a long-tailed training set and a balanced test set, half of it in fonts that no
training image is in. `train` trains a small ResNet, `--model benchmarks.glyphs:network`.

python -m benchmarks.glyphs make --out glyphs
python -m benchmarks.glyphs train --data glyphs --out glyphs/glyphs.safetensors --device cuda
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.glyph_characters import OTHER_FONTS, TRAINING_FONTS, choose_characters, open_fonts
from benchmarks.glyph_images import TEST, TRAINING, draw_images, sheet
from hessian_surgery.data.images import Preprocessing
from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.data.readers.parquet import read_parquet
from hessian_surgery.errors import InputError
from hessian_surgery.evidence.metrics import class_accuracy, sigma
from hessian_surgery.evidence.noise_free_sigma import corrected_sigma
from hessian_surgery.files import written_beside
from hessian_surgery.model.resnet import BasicBlock
from hessian_surgery.seeding import generator, numpy_generator
from hessian_surgery.types import Array
from hessian_surgery.weights.tensorfile import save_tensors

CLASSES = 1000
# Training images of the most common class and of the rarest: about 60,000 of 1,000 classes.
MOST, FEWEST = 155, 15
# Test images of each class.
TEST_IMAGES = 40
# Images in the contact sheet, and in a row of it.
SHEET, COLUMNS = 800, 40
# Of pixels in 0..1, about.
MEAN, STD = 0.25, 0.17
BATCH = 512
LEARNING_RATE = 0.2


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


def train(data: LabelledSet, device: torch.device, epochs: int, seed: int = 0) -> GlyphNet:
    """Train the network by SGD with momentum; the learning rate falls along half a cosine.

    Images stay on the device as bytes, and each is shifted by up to one pixel. On a GPU, passes are
    in bfloat16.
    """
    torch.manual_seed(seed)
    net = network(len(data.classes)).to(device, memory_format=torch.channels_last)
    pixels, labels = pixels_of(data).to(device), data.labels.to(device)
    optimizer = torch.optim.SGD(net.parameters(), LEARNING_RATE, momentum=0.9, nesterov=True, weight_decay=5e-4)
    steps = epochs * -(-len(labels) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draw = generator(seed, "glyphs-train")
    for epoch in range(epochs):
        total = torch.zeros((), device=device)
        for chosen in torch.randperm(len(labels), generator=draw).to(device).split(BATCH):
            inputs = normalized(shifted(pixels[chosen])).contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = functional.cross_entropy(net(inputs).float(), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach() * len(chosen)
        print(f"epoch {epoch + 1} of {epochs}: loss {float(total) / len(labels):.3f}", flush=True)
    return net.eval()


def class_accuracies(net: GlyphNet, data: LabelledSet, device: torch.device) -> Array:
    """The accuracy of each class (C,)."""
    with torch.no_grad():
        parts = [net(normalized(part.to(device))).argmax(dim=1).cpu() for part in pixels_of(data).split(BATCH)]
    return class_accuracy(torch.cat(parts), data.labels, len(data.classes))


def pixels_of(data: LabelledSet) -> Tensor:
    """The images as bytes (n, 1, h, w)."""
    inputs = data.inputs()
    assert isinstance(inputs, Tensor)
    return (inputs[:, :1] * 255).round().to(torch.uint8)


def normalized(pixels: Tensor) -> Tensor:
    """Inputs (n, 1, h, w) from bytes, as `Preprocessing` makes them."""
    return (pixels.float() / 255 - MEAN) / STD


def shifted(pixels: Tensor) -> Tensor:
    """Images (n, 1, h, w), each shifted by up to a pixel in each direction; edges are repeated."""
    count, _, height, width = pixels.shape
    dy, dx = torch.randint(-1, 2, (2, count, 1), device=pixels.device)
    rows = (torch.arange(height, device=pixels.device) + dy).clamp(0, height - 1)
    columns = (torch.arange(width, device=pixels.device) + dx).clamp(0, width - 1)
    which = torch.arange(count, device=pixels.device)[:, None, None]
    return pixels[which, 0, rows[:, :, None], columns[:, None, :]][:, None]


def run_train(given: argparse.Namespace) -> None:
    """Train, save the weights and what inputs are normalised by, and print the accuracies."""
    device = torch.device(given.device)
    parts = {part: read_parquet([given.data / f"{part}.parquet"], Preprocessing()) for part in ("train", "test")}
    start = time.perf_counter()
    net = train(parts["train"], device, given.epochs, given.seed)
    print(f"trained in {time.perf_counter() - start:.0f} s")
    scale = {f"normalize_{key}": ",".join([str(value)] * 3) for key, value in (("mean", MEAN), ("std", STD))}
    save_tensors(given.out, net.state_dict(), scale)
    found = class_accuracies(net, parts["test"], device)
    without = corrected_sigma(found, parts["test"].counts.numpy())
    print(
        f"accuracy {100 * found.mean():.2f} %, σ {100 * sigma(found):.2f} pp ({100 * without:.2f} pp without sampling "
        f"noise), worst class {100 * found.min():.1f} %"
    )


def main() -> None:
    """Make the set, or train on it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    making.add_argument("--out", type=Path, required=True, help="folder")
    making.add_argument("--classes", type=int, default=CLASSES)
    training = commands.add_parser("train")
    training.add_argument("--data", type=Path, required=True, help="folder that `make` wrote")
    training.add_argument("--out", type=Path, required=True, help="safetensors file")
    training.add_argument("--device", default="cpu")
    training.add_argument("--epochs", type=int, default=30)
    for command in (making, training):
        command.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    try:
        make(given.out, given.classes, given.seed) if given.command == "make" else run_train(given)
    except InputError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
