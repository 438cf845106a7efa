"""Parts of the data have the same classes in the same order."""

import pytest
import torch

import hessian_surgery as hs
from conftest import points
from hessian_surgery.data.class_names import common_names, require_same_names


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


def test_all_parts_get_the_longest_list_of_names():
    parts = {"training_data": ("a", "b"), "calibration_data": ("0", "1", "2"), "heldout_data": ("a", "b", "c")}
    assert common_names(parts) == ("a", "b", "c")
    with pytest.raises(hs.InputError, match="heldout_data: its class 1 is 'x', but training_data's is 'b'"):
        common_names(parts | {"calibration_data": ("0",), "heldout_data": ("a", "x")})
    assert common_names({"training_data": ("0",), "heldout_data": ("0", "1")}) == ("0", "1")


def test_held_out_images_without_names_take_the_others():
    parts = {f"{name}_data": points(60, seed) for seed, name in enumerate(("training", "calibration", "heldout"))}
    heldout = parts["heldout_data"]
    parts["heldout_data"] = hs.as_labelled((heldout.inputs(), heldout.labels))
    outcome = hs.operate(torch.nn.Linear(2, 3), config=hs.SurgeryConfig(iterations=1), **parts)
    assert outcome.findings.heldout.classes == ("ant", "bee", "cat")
