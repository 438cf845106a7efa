"""The hash of a set of images tells sets apart, and knows the same set again."""

import torch

from hessian_surgery.data.data_hash import data_hash, image_hashes
from hessian_surgery.data.labelled import as_labelled


def test_hash_knows_inputs_labels_names_and_order():
    images = torch.arange(24.0).reshape(6, 4)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    base = as_labelled((images, labels), ("a", "b", "c"))
    same = as_labelled((images.clone(), labels.clone()), ("a", "b", "c"))
    assert data_hash(base) == data_hash(same) == data_hash(base, image_hashes(base))
    changed = images.clone()
    changed[5, 3] += 1
    others = [
        as_labelled((changed, labels), ("a", "b", "c")),
        as_labelled((images, labels.flip(0)), ("a", "b", "c")),
        as_labelled((images, labels), ("a", "b", "d")),
        base.subset(torch.tensor([1, 0, 2, 3, 4, 5])),
        base.subset(torch.arange(5)),
    ]
    assert len({data_hash(data) for data in (base, *others)}) == 6


def test_hash_is_that_of_the_source_wherever_the_images_are_held():
    base = as_labelled((torch.rand(5, 3, 2, 2), torch.tensor([0, 1, 0, 1, 1])))
    assert data_hash(base) == data_hash(base.resident("cpu"))
