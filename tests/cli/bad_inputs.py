"""Models and data that something is wrong with; tests name them as `bad_inputs:FACTORY`."""

import torch
from torch import nn
from torch.utils.data import IterableDataset

from hessian_surgery.data.readers.digits import digits
from hessian_surgery.model.smallnet import SmallNet


def pair_with(change):
    """The digits task, its test part changed."""
    task = digits(0)
    return (task.train.inputs(), task.train.labels), change(task.test.inputs(), task.test.labels)


def labels_beyond():
    return pair_with(lambda x, y: (x, torch.where(y == 3, -1, y)))


def class_missing():
    return pair_with(lambda x, y: (x[y != 3], y[y != 3]))


def empty_set():
    return pair_with(lambda x, y: (x[:0], y[:0]))


def nan_images():
    task = digits(0)
    return (task.train.inputs() * float("nan"), task.train.labels), (task.test.inputs(), task.test.labels)


def float_labels():
    return pair_with(lambda x, y: (x, y.float()))


def fewer_labels():
    return pair_with(lambda x, y: (x, y[:-1]))


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.zeros(1), 0


def stream():
    return Stream(), Stream()


class Dice(SmallNet):
    def forward(self, x):
        return super().forward(x) + torch.rand(len(x), 10)


class Broken(SmallNet):
    def forward(self, x):
        return super().forward(x) * float("nan")


class Features(SmallNet):
    def forward(self, x):
        return self.features(x)[:, 0]


class Untouched(SmallNet):
    def forward(self, x):
        raise AssertionError("the model was evaluated")


def dice():
    return Dice(10)


def broken():
    return Broken(10)


def features():
    return Features(10)


def untouched():
    return Untouched(10)


def half_model():
    return SmallNet(10).bfloat16()


def frozen():
    return SmallNet(10).requires_grad_(False)


def needs_arguments(classes):
    return SmallNet(classes)


def nan_late():
    def spoil(x, y):
        x = x.clone()
        x[700] = float("nan")
        return x, y

    return pair_with(spoil)


def colour():
    return pair_with(lambda x, y: (x.expand(-1, 3, -1, -1), y))


def trained_on_test():
    task = digits(0)
    return task.test.inputs(), task.test.labels


def own_weights():
    return SmallNet(10)


def not_a_model():
    return "a string"


def two_classes():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 2))


def refused(code, captured, message, at_once=True):
    """A command ended with one clear line on stderr, and nothing on stdout.

    What is wrong with the input is said at once: no work has begun, and none is shown.
    """
    assert code == 2, captured.err
    assert captured.out == ""
    assert message in captured.err
    assert "Traceback" not in captured.err
    lines = captured.err.splitlines()
    assert not at_once or not any(" % done" in line for line in lines)
    assert len([line for line in lines if " % done" not in line]) <= 3
