"""The hash of a set of images: the same for the same inputs, labels and class names, in order."""

from collections.abc import Sequence
from hashlib import sha1, sha256

import torch
from torch import Tensor

from hessian_surgery.data import batches
from hessian_surgery.data.batches import Inputs
from hessian_surgery.data.labelled import CHUNK, LabelledSet
from hessian_surgery.distributed import in_turns


def image_hashes(data: LabelledSet) -> list[bytes]:
    """The SHA-1 of each image's inputs, as the model gets them; every image is read.

    Samples that differ in length are hashed without padding, which depends on their batch.
    """
    together = CHUNK if data.ragged is None else 1

    def hashed(chunk: Tensor) -> list[bytes]:
        return [one for some in chunk.split(together) for one in _hashes(data.fetch(some), len(some))]

    chunks = torch.arange(len(data)).split(CHUNK) if len(data) else ()
    return [one for some in in_turns(chunks, hashed) for one in some]


def _hashes(inputs: Inputs, count: int) -> list[bytes]:
    """The SHA-1 of each of `count` samples."""
    parts = [tensor.cpu().contiguous() for tensor in batches.tensors(inputs)]
    rows = [part.reshape(count, -1).view(torch.uint8).numpy() for part in parts]
    return [sha1(b"".join(row[i].tobytes() for row in rows)).digest() for i in range(count)]


def data_hash(data: LabelledSet, images: Sequence[bytes] | None = None) -> str:
    """The SHA-256, in hex, of class names, labels and `image_hashes`, in the set's order.

    Args:
        data: the images.
        images: their `image_hashes`, if they are at hand; else every image is read.
    """
    found = sha256("\0".join(data.classes).encode("utf-8", "surrogateescape"))
    found.update(data.labels.numpy().tobytes())
    found.update(b"".join(image_hashes(data) if images is None else images))
    return found.hexdigest()
