"""Class names of a model's config, beside the data's."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import hessian_surgery as hs
from hessian_surgery.model.evaluation import check_classifier
from hessian_surgery.model.label_names import check_label_names, label_names


def named(*names):
    module = nn.Linear(4, max(2, len(names)))
    module.config = SimpleNamespace(id2label=dict(enumerate(names)))
    return module


def test_names_come_in_the_order_of_the_outputs():
    module = nn.Linear(4, 3)
    assert label_names(module) is None
    module.config = SimpleNamespace(id2label={"10": "c", "9": "b", "0": "a"})
    assert label_names(module) == ("a", "b", "c")
    assert label_names(named("LABEL_0", "LABEL_1")) is None


@pytest.mark.parametrize("classes", [("cat", "dog"), ("Cat", " dog"), ("cat",), ("0", "1")])
def test_the_same_names_are_fine(classes):
    assert check_label_names(named("cat", "dog"), classes) is None


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (
            ("dog", "cat"),
            r"its class 0 is 'cat' .id2label., but the data's is 'dog'; .*, as dataset\.align_labels_with",
        ),
        (("cat", "fox"), r"its class 1 is 'dog' .id2label., but the data's is 'fox'; .* in the model's order$"),
        (("cat", "dog", "fox"), "its class 2 is not there .id2label., but the data's is 'fox'"),
    ],
)
def test_another_order_is_refused(classes, message):
    with pytest.raises(hs.InputError, match=message):
        check_label_names(named("cat", "dog"), classes)


def test_names_that_have_nothing_in_common_are_matched_in_order_and_noted():
    data = hs.as_labelled((torch.randn(8, 4), torch.arange(8) % 2), classes=("neg", "pos"))
    note = check_classifier(hs.Classifier(named("NEGATIVE", "POSITIVE")), data)
    assert note == "the model calls its first class 'NEGATIVE' and the data 'neg': they are matched in order"


def test_classes_that_nobody_has_named_are_matched_in_order_and_noted():
    unnamed = named("LABEL_0", "LABEL_1")
    assert check_label_names(unnamed, ("0", "1")) is None
    assert check_label_names(unnamed, ("LABEL_0", "LABEL_1")) is None
    note = "the model calls its first class 'LABEL_0' and the data 'neg': they are matched in order"
    assert check_label_names(unnamed, ("neg", "pos")) == note
