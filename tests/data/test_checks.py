import pytest
import torch

import hessian_surgery as hs
from hessian_surgery.data.checks import require_images


@pytest.mark.parametrize(
    ("labels", "at_least", "message"),
    [
        ([0, 0], 1, r"^half: class 'bee' has no sample; give at least 1 of each class$"),
        ([0, 0, 1], 2, r"^half: class 'bee' has 1 sample; give at least 2 of each class$"),
        ([0, 0, 0, 1, 1], 3, r"^half: class 'bee' has 2 samples; give at least 3 of each class$"),
        ([1], 2, r"^half: class 'ant' has no sample; give at least 2 of each class$"),
    ],
)
def test_a_class_with_too_few_images_is_named(labels, at_least, message):
    with pytest.raises(hs.InputError, match=message):
        require_images(torch.tensor(labels), ("ant", "bee"), "half", at_least)


def test_labels_that_start_at_one_are_told_from_where_they_count():
    with pytest.raises(hs.InputError, match=r"^half: class '0' has no sample; .* of each class; labels start at 0$"):
        require_images(torch.tensor([1, 2]), ("0", "1", "2"), "half")


def test_too_few_of_the_first_class_is_no_matter_of_numbers():
    with pytest.raises(hs.InputError, match=r"^half: class '0' has 1 sample; give at least 2 of each class$"):
        require_images(torch.tensor([0, 1, 1]), ("0", "1"), "half", 2)


def test_enough_images_pass():
    require_images(torch.tensor([0, 1]), ("ant", "bee"), "half")
    require_images(torch.tensor([1, 0, 1, 0]), ("ant", "bee"), "half", at_least=2)
