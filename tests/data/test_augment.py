import numpy as np
import torch

from hessian_surgery.data.augment import augmented


def moved(image, shift, flip, copies=200):
    torch.manual_seed(0)
    return augmented(image.repeat(copies, 1, 1, 1), shift, flip)


def test_shifts_are_by_so_many_pixels_at_most():
    image = torch.zeros(1, 2, 5, 7)
    image[0, :, 2, 3] = 9
    found = moved(image, 1, flip=False)
    assert found.shape == (200, 2, 5, 7)
    assert (found.flatten(2).sum(dim=2) == 9).all()
    assert torch.equal(found[:, 0], found[:, 1])
    reached = np.argwhere(found[:, 0].amax(dim=0).numpy() > 0)
    assert reached.tolist() == [[y, x] for y in (1, 2, 3) for x in (2, 3, 4)]


def test_edges_are_repeated():
    image = torch.arange(4.0).expand(1, 1, 3, 4)
    found = {tuple(row) for row in moved(image, 1, flip=False)[:, 0, 0].tolist()}
    assert found == {(0, 0, 1, 2), (0, 1, 2, 3), (1, 2, 3, 3)}


def test_half_are_mirrored():
    image = torch.arange(4.0).expand(1, 1, 3, 4)
    found = moved(image, 0, flip=True, copies=1000)[:, 0, 0]
    mirrored = (found == torch.tensor([3.0, 2.0, 1.0, 0.0])).all(dim=1)
    same = (found == torch.tensor([0.0, 1.0, 2.0, 3.0])).all(dim=1)
    assert (mirrored ^ same).all()
    assert 400 < mirrored.sum() < 600


def test_what_is_no_image_stays():
    inputs = {"image": torch.rand(3, 1, 4, 4), "age": torch.rand(3, 1)}
    found = augmented(inputs, 1, flip=True)
    assert torch.equal(found["age"], inputs["age"])
    assert found["image"].shape == (3, 1, 4, 4)
