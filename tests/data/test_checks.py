import pytest
import torch

import hessian_surgery as hs
from hessian_surgery.data.checks import count_common, refuse_overlap, require_images

X = torch.arange(24.0).reshape(12, 2)
Y = torch.arange(12) % 3


@pytest.mark.parametrize(
    ("labels", "at_least", "message"),
    [
        ([0, 0], 1, r"^half: class 'bee' has no image; give at least 1 of each class$"),
        ([0, 0, 1], 2, r"^half: class 'bee' has 1 image; give at least 2 of each class$"),
        ([0, 0, 0, 1, 1], 3, r"^half: class 'bee' has 2 images; give at least 3 of each class$"),
        ([1], 2, r"^half: class 'ant' has no image; give at least 2 of each class$"),
    ],
)
def test_a_class_with_too_few_images_is_named(labels, at_least, message):
    with pytest.raises(hs.InputError, match=message):
        require_images(torch.tensor(labels), ("ant", "bee"), "half", at_least)


def test_enough_images_pass():
    require_images(torch.tensor([0, 1]), ("ant", "bee"), "half")
    require_images(torch.tensor([1, 0, 1, 0]), ("ant", "bee"), "half", at_least=2)


def test_common_samples_are_counted_in_any_order():
    first = hs.as_labelled((X, Y))
    assert count_common(first, hs.as_labelled((X.clone().flip(0), Y.flip(0)))) == 12
    assert count_common(first, hs.as_labelled((torch.cat([X[:3], X[:9] + 0.5]), Y))) == 3


def test_a_set_that_is_mostly_in_the_calibration_data_is_refused():
    first = hs.as_labelled((X, Y))
    with pytest.raises(hs.InputError, match="heldout: 12 of its 12 samples are in the calibration data as well"):
        refuse_overlap(first, first, "heldout")
    refuse_overlap(first, hs.as_labelled((X + 0.5, Y)), "heldout")
