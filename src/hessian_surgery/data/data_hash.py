"""The hash of a set of images: the same for the same inputs, labels and class names, in order."""

from collections.abc import Sequence
from hashlib import sha1, sha256

import torch

from hessian_surgery.data import batches
from hessian_surgery.data.labelled import CHUNK, LabelledSet


def image_hashes(data: LabelledSet) -> list[bytes]:
    """The SHA-1 of each image's inputs, as the model gets them; every image is read.

    Samples that differ in length are hashed without padding, which depends on their batch.
    """
    found: list[bytes] = []
    for chunk in torch.arange(len(data)).split(CHUNK if data.ragged is None else 1) if len(data) else ():
        parts = [tensor.cpu().contiguous() for tensor in batches.tensors(data.fetch(chunk))]
        rows = [part.reshape(len(chunk), -1).view(torch.uint8).numpy() for part in parts]
        found += [sha1(b"".join(row[i].tobytes() for row in rows)).digest() for i in range(len(chunk))]
    return found


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
