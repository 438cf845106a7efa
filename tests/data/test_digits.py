import torch

import hessian_surgery as hs


def test_training_digits_are_long_tailed_and_test_digits_are_not():
    task = hs.digits(seed=3)
    train = task.train.counts.sort(descending=True).values.double()
    assert train[0] / train[-1] > 10
    assert (train[:-1] >= train[1:]).all()
    test = task.test.counts
    assert test.max() - test.min() < 10
    assert not set(task.train.index.tolist()) & set(task.test.index.tolist())


def test_the_seed_fixes_the_task():
    one, same, other = hs.digits(seed=0), hs.digits(seed=0), hs.digits(seed=1)
    assert torch.equal(one.train.inputs(), same.train.inputs())
    assert not torch.equal(one.train.index, other.train.index)
