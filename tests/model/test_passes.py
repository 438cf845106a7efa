"""Batch size and memory format change how fast passes are, and nothing else."""

import time
from contextlib import closing

import pytest
import torch
from torch import nn

import hessian_surgery as hs
from hessian_surgery.directions.logit_changes import logit_tangents, logits_after
from hessian_surgery.directions.soft_accuracy import soft_accuracy_gradients
from hessian_surgery.model.evaluation import predict
from hessian_surgery.model.head import compute_features, find_head
from hessian_surgery.model.parameters import parameter_space
from hessian_surgery.model.passes import FEWEST, Passes, choose_passes

INNERMOST = torch.channels_last


def images(count=FEWEST, dtype=torch.float32):
    draw = torch.Generator().manual_seed(0)
    return hs.as_labelled((torch.randn(count, 3, 4, 4, generator=draw, dtype=dtype), torch.arange(count) % 3))


def net():
    torch.manual_seed(0)
    body = (nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten())
    return nn.Sequential(*body, nn.Linear(20, 3)).double().eval()


class Slow(nn.Module):
    """Waits for images that lie otherwise in memory than it likes, or for large batches."""

    def __init__(self, likes=None, most=10**6):
        super().__init__()
        self.fc = nn.Linear(48, 3)
        self.likes, self.most = likes, most
        self.sizes = []

    def forward(self, x):
        self.sizes.append(len(x))
        liked = self.likes is None or x.is_contiguous(memory_format=self.likes)
        time.sleep(0.001 * len(x) * (not liked or len(x) > self.most))
        return self.fc(x.flatten(1))


@pytest.mark.parametrize("channels_last", [True, False])
def test_values_and_derivatives_do_not_depend_on_the_format(channels_last):
    module, data = net(), images(40, torch.float64)
    space = parameter_space(module)
    inputs, direction = data.inputs(), torch.randn(space.dimension, dtype=torch.float64)
    found = []
    for classifier, size in ((hs.Classifier(module), 40), (hs.Classifier(module, channels_last=channels_last), 7)):
        slopes = logit_tangents(classifier, space, data, size)(direction, None)
        after = logits_after(classifier, space, 0.1 * direction, data, size)
        with closing(soft_accuracy_gradients(classifier, space, data, 0.3, size)) as pairs:
            gradients = torch.stack([gradient for _, gradient in pairs])
        features, _ = compute_features(classifier, find_head(classifier, inputs[:2]), data, size)
        found.append((classifier.logits(inputs), gradients, slopes, after, features))
    for (one, other), tolerance in zip(zip(*found, strict=True), (1e-12, 1e-12, 1e-6, 1e-6, 1e-6), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=tolerance)


def test_answers_do_not_depend_on_the_passes(trained, digits_images):
    ways = [Passes(size, form) for size in (64, 100, 512) for form in (None, True, False)]
    answers = [predict(way.through(hs.Classifier(trained)), digits_images, way.batch_size) for way in ways]
    assert all(torch.equal(answer, answers[0]) for answer in answers)


def test_inputs_are_arranged_as_the_classifier_says():
    seen = []

    def note(module, inputs):
        seen.append([tensor.is_contiguous(memory_format=INNERMOST) if tensor.ndim == 4 else None for tensor in inputs])
        return module(inputs[0].flatten(1))

    pair = (torch.randn(2, 3, 4, 4), torch.randn(2, 5))
    for form in (True, False, None):
        hs.Classifier(nn.Linear(48, 3), forward=note, channels_last=form).logits(pair)
    assert seen == [[True, None], [False, None], [False, None]]


def test_the_faster_format_is_chosen():
    assert choose_passes(hs.Classifier(Slow(likes=INNERMOST)), images()).channels_last is True
    assert choose_passes(hs.Classifier(Slow(likes=torch.contiguous_format)), images()) == Passes()


def test_the_faster_size_is_chosen():
    data = hs.as_labelled((torch.randn(FEWEST, 48), torch.arange(FEWEST) % 3))
    module = Slow(most=64)
    assert choose_passes(hs.Classifier(module), data) == Passes(64)
    # The trial takes no longer than a pass over all images, but for the first batches.
    assert sum(size for size in module.sizes if size > 64) < FEWEST + 512


def test_nothing_is_tried_where_it_is_not_worth_it():
    quick, few = Slow(), Slow(likes=INNERMOST)
    assert choose_passes(hs.Classifier(quick), images()) == Passes()
    assert set(quick.sizes) == {64, 512}
    assert choose_passes(hs.Classifier(few), images(FEWEST - 1)) == Passes()
    assert few.sizes == []


def test_what_is_given_is_kept():
    module = Slow(likes=INNERMOST)
    assert choose_passes(hs.Classifier(module), images(), 100) == Passes(100)
    assert module.sizes == []
    assert choose_passes(hs.Classifier(module, channels_last=False), images()).channels_last is False


class Views(Slow):
    def forward(self, x):
        return super().forward(x.view(len(x), -1))


def test_a_format_that_the_model_refuses_is_not_chosen():
    assert choose_passes(hs.Classifier(Views(most=64)), images()) == Passes(64)
