import io
import resource
import struct
import zlib

import pytest
import torch
from PIL import Image

import hessian_surgery as hs
from hessian_surgery.data.images import LARGEST_SIDE, Preprocessing


def blank_png(side):
    """A PNG of side × side equal pixels, in a few kilobytes."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(1 + side)) for _ in range(side)) + packer.flush()
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_images_that_would_fill_memory_are_refused_before_they_are_decoded():
    bomb = blank_png(9_000)
    assert len(bomb) < 100_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(40):
        with pytest.raises(hs.InputError, match=r"a\.png has 9000×9000 pixels; give image_size=N"):
            Preprocessing().decode(bomb, "a.png")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
    head = bomb[:16] + struct.pack(">II", 20_000, 20_000) + bomb[24:29]
    huge = head + struct.pack(">I", zlib.crc32(head[12:29])) + bomb[33:]
    with pytest.raises(hs.InputError, match=r"(20000×20000 pixels; give images of at most|cannot be read)"):
        Preprocessing(size=8).decode(huge, "a.png")


def test_a_format_that_another_program_would_be_run_for_is_refused():
    stream = io.BytesIO()
    Image.new("RGB", (4, 4)).save(stream, "EPS")
    with pytest.raises(hs.InputError, match="cannot be read as an image"):
        Preprocessing().decode(stream.getvalue(), "a.png")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"size": 100_000}, f"image_size: got 100000; give 1 to {LARGEST_SIDE} pixels"),
        ({"size": 0}, "image_size: got 0"),
        ({"size": 1.5}, "size: got 1.5; it must be a whole number or nothing"),
        ({"mean": (0.5, float("nan"), 0.5)}, "mean: got a tuple; it must be a list"),
        ({"std": "abc"}, "std: got 'abc'; it must be a list"),
    ],
)
def test_settings_are_checked(wrong, words):
    with pytest.raises(hs.InputError, match=words):
        Preprocessing(**wrong)


def test_labels_that_would_build_millions_of_names_are_refused():
    labels = torch.tensor([0, 300_000_000])
    with pytest.raises(hs.InputError, match="a label is 300000000; numbers from 100,000 on need class names"):
        hs.as_labelled((torch.zeros(2, 1), labels))
