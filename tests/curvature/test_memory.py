import mmap
import re

import numpy as np
import pytest
import torch
from torch import nn

import hessian_surgery as hs
from hessian_surgery.curvature import memory
from hessian_surgery.curvature.memory import Room, Watch, check_graph, free_room, saved_bytes

MB = 10**6


def test_only_what_the_chosen_weights_need_is_counted():
    net = nn.Sequential(nn.Linear(8, 1000), nn.Tanh(), nn.Linear(1000, 4))
    data = hs.as_labelled((torch.randn(3, 8), torch.arange(3)), classes=list("abcd"))
    classifier = hs.Classifier(net)
    last = hs.parameter_space(net, "2.*")
    assert saved_bytes(classifier, data, last) < saved_bytes(classifier, data)
    assert all(p.requires_grad for p in net.parameters())


def test_a_batch_whose_graph_does_not_fit_is_refused_with_the_micro_batch_that_would():
    net = nn.Sequential(nn.Linear(8, 1000), nn.Tanh(), nn.Linear(1000, 4))
    data = hs.as_labelled((torch.randn(300, 8), torch.arange(300) % 4))
    classifier = hs.Classifier(net)
    room = Room(MB, MB, MB)
    with pytest.raises(hs.InputError, match="hessian_samples: the graph of 300 images takes about") as refusal:
        check_graph(classifier, data, 300, room)
    fitting = int(re.search(r"micro_batch=(\d+)", str(refusal.value))[1])
    assert 0 < check_graph(classifier, data, fitting, room) <= MB
    with pytest.raises(hs.InputError, match="not even one image"):
        check_graph(classifier, data, 300, Room(100, 100, 100))


def test_the_watch_sees_what_is_held():
    watch = Watch(torch.device("cpu"))
    held = mmap.mmap(-1, 50 * MB)  # a tensor may get memory that an earlier test has freed
    np.frombuffer(held, np.uint8)[:] = 1
    assert watch.peak() == pytest.approx(50 * MB, rel=0.3)


def test_free_room_is_what_the_machine_has(monkeypatch):
    room = free_room(torch.device("cpu"))
    assert room.device == room.host > 10**8
    assert room.disk > 10**6
    monkeypatch.setattr(memory.Path, "read_text", lambda *_: (_ for _ in ()).throw(FileNotFoundError()))
    assert free_room(torch.device("cpu")).host > 10**8
