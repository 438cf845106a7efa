"""Parts of the data have the same classes in the same order."""

import pytest
import torch

import hessian_surgery as hs
from conftest import points
from hessian_surgery.data.class_names import require_same_names


@pytest.mark.parametrize(
    ("known", "others"),
    [(("a", "b"), ("a", "b")), (("a", "b"), ("a",)), (("a", "b"), ("0", "1")), (("0", "1"), ("a", "b"))],
)
def test_names_that_fit(known, others):
    require_same_names(known, others, "training_data")


def test_names_in_another_order_are_refused():
    training = points(30, 0)
    turned = hs.as_labelled((training.inputs(), training.labels), classes=["bee", "ant", "cat"])
    model = torch.nn.Linear(2, 3)
    message = "training_data: its class 0 is 'bee', but calibration_data's is 'ant'; give all parts the same classes"
    with pytest.raises(hs.InputError, match=message):
        hs.operate(model, training_data=turned, calibration_data=points(30, 1), heldout_data=points(30, 2))
    with pytest.raises(hs.InputError, match="training_data: its class 0 is 'bee', but data's is 'ant'"):
        hs.compare(model, data=points(30, 1), training_data=turned)


def test_more_classes_are_refused():
    with pytest.raises(hs.InputError, match="training_data: it has 3 classes and calibration_data has 2"):
        require_same_names(("a", "b"), ("a", "b", "c"), "training_data")
