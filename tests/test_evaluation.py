import pytest
import torch
from torch import nn

import hessian_surgery as hs
from hessian_surgery.evaluation import check_classifier, compute_logits, predict


def data(classes=3):
    return hs.as_labelled((torch.randn(50, 4), torch.arange(50) % classes))


def test_batches_make_no_difference():
    model, labelled = nn.Linear(4, 3), data()
    whole = compute_logits(hs.Classifier(model), labelled, 50)
    assert torch.allclose(compute_logits(hs.Classifier(model), labelled, 7), whole, atol=1e-6)
    assert torch.equal(predict(hs.Classifier(model), labelled), whole.argmax(1))


class Dice(nn.Linear):
    def forward(self, x):
        return super().forward(x) + torch.rand(len(x), 3)


def test_models_that_cannot_be_measured_are_refused():
    with pytest.raises(hs.InputError, match="it gives 5 logits where the data has 3 classes"):
        check_classifier(hs.Classifier(nn.Linear(4, 5)), data())
    broken = nn.Linear(4, 3)
    nn.init.constant_(broken.bias, float("nan"))
    with pytest.raises(hs.InputError, match="not finite"):
        check_classifier(hs.Classifier(broken), data())
    with pytest.raises(hs.InputError, match="two identical passes"):
        check_classifier(hs.Classifier(Dice(4, 3)), data())
