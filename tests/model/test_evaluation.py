import pytest
import torch
from torch import nn

import hessian_surgery as hs
from hessian_surgery.model.evaluation import answer, check_classifier, compute_logits, output_name, predict


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
    with pytest.raises(hs.InputError, match="it gives 2 logits, but the data has 3 classes, with labels from 0 to 2;"):
        check_classifier(hs.Classifier(nn.Linear(4, 2)), data())
    broken = nn.Linear(4, 3)
    nn.init.constant_(broken.bias, float("nan"))
    with pytest.raises(hs.InputError, match=r"not finite on the first images; check the weights$"):
        check_classifier(hs.Classifier(broken), data())
    spoilt = hs.as_labelled((torch.full((50, 4), float("nan")), torch.arange(50) % 3))
    with pytest.raises(hs.InputError, match=r"not finite on the first images; check the data$"):
        check_classifier(hs.Classifier(nn.Linear(4, 3)), spoilt)
    with pytest.raises(hs.InputError, match="two identical passes"):
        check_classifier(hs.Classifier(Dice(4, 3)), data())
    twice = hs.Classifier(nn.Linear(4, 3), forward=lambda module, x: module(torch.cat([x, x])))
    with pytest.raises(hs.InputError, match="it gives 64 rows of logits for 32 samples"):
        check_classifier(twice, data())


def test_more_outputs_than_classes_give_a_note():
    assert check_classifier(hs.Classifier(nn.Linear(4, 3)), data()) is None
    assert "5 outputs, the data 3 classes" in check_classifier(hs.Classifier(nn.Linear(4, 5)), data())
    assert [output_name(i, ("ant", "bee")) for i in range(3)] == ["ant", "bee", "output 2"]


def test_probabilities_in_place_of_logits_give_a_note():
    found = check_classifier(hs.Classifier(nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))), data())
    assert found.startswith("the model's outputs look like probabilities, as each row sums to 1; give the logits")


def test_answers_by_hand():
    model = nn.Linear(1, 2, bias=False)
    nn.init.constant_(model.weight, 0)
    with torch.no_grad():
        model.weight[1] = 1.0
    labelled = hs.as_labelled((torch.tensor([[2.0], [-1.0]]), torch.tensor([1, 1])))
    answers = answer(hs.Classifier(model), labelled)
    assert answers.predicted.tolist() == [1, 0]
    p = torch.sigmoid(torch.tensor([2.0, -1.0]))
    assert torch.allclose(answers.nll, -p.log())
    assert torch.allclose(answers.confidence, torch.tensor([p[0], 1 - p[1]]))


class MinusMean(torch.nn.Linear):
    """Logits minus their mean over the batch."""

    def forward(self, x):
        logits = super().forward(x)
        return logits - logits.mean(dim=0)


@pytest.mark.parametrize(
    "module",
    [MinusMean(4, 3), torch.nn.Sequential(torch.nn.BatchNorm1d(4, track_running_stats=False), torch.nn.Linear(4, 3))],
)
def test_a_model_whose_logits_depend_on_the_batch_is_refused(module):
    draw = torch.Generator().manual_seed(0)
    data = hs.as_labelled((torch.randn(40, 4, generator=draw), torch.arange(40) % 3))
    with pytest.raises(hs.InputError, match="depend on the other images of the batch"):
        check_classifier(hs.Classifier(module.eval()), data)
