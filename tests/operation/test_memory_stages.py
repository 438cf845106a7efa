import tracemalloc
from dataclasses import replace

import pytest
import torch
from torch import nn

import hessian_surgery as hs
from hessian_surgery.curvature.memory import Room
from hessian_surgery.directions.family import Probe
from hessian_surgery.directions.refit import refit_directions
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.operation.memory_stages import memory_by_stage
from hessian_surgery.operation.size_up import plan_for, size_up
from hessian_surgery.operation.trial import _Tally

ROOM = Room(10**12, 10**12, 10**12)


def made_up(images, classes, width):
    """A linear model, and images that it is right about now and then."""
    draw = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    labels = torch.arange(images) % classes
    inputs = torch.randn(classes, width, generator=draw)[labels] + torch.randn(images, width, generator=draw)
    return nn.Linear(width, classes).eval(), hs.as_labelled((inputs, labels))


def sized(net, data, directions="refit"):
    """The sizes of an operation."""
    planned = plan_for(hs.Classifier(net), data, hs.SurgeryConfig(directions=directions))
    return planned, size_up(planned, data, data, None, None)


def held(sizes, stage="directions"):
    """The bytes of a stage."""
    found = next(found for found in memory_by_stage(sizes, ROOM) if found.name == stage)
    return found.held("device", "host")


@pytest.mark.parametrize(("images", "classes", "width"), [(400, 50, 300), (3000, 100, 8), (3000, 5, 200)])
def test_a_refit_holds_what_is_announced(images, classes, width):
    """A head, logits and features in turn take most of it."""
    net, data = made_up(images, classes, width)
    planned, sizes = sized(net, data)
    classifier = planned.classifier
    probe = Probe(classifier, planned.space, data, compute_logits(classifier, data))
    with _Tally():
        refit_directions(probe, planned.head)  # what is imported when it is used first does not count
    tracemalloc.start()
    with _Tally() as tally:
        refit_directions(probe, planned.head)
    # The two peaks need not be at the same time.
    most = tally.most + tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    without = replace(sizes, refit=False, features=0, head=0, gradients=(), vector=0, slope=0)
    bare = held(without) - 3 * sizes.all_logits  # no slopes
    announced = held(replace(without, refit=True, features=sizes.features, head=sizes.head)) - bare
    assert 0.7 * announced <= most <= 1.15 * announced


def test_a_refit_keeps_no_vector_of_all_weights():
    """Two changes of the head, and the logits part of the way there."""
    sizes = replace(sized(*made_up(200, 5, 8))[1], vector=10**9)
    without = replace(sizes, refit=False, features=0, head=0)
    more = held(sizes, "measure") - held(without, "measure")
    candidates = 2 * (sizes.steps - without.steps) * (8 * 200 + 100 * 5 * 4)
    assert more - candidates == 2 * 4 * sizes.head + sizes.all_logits + sizes.modelled


def test_a_refit_is_a_flag_of_its_own():
    """Candidates from both starts, even if its features took no memory."""
    sizes = sized(*made_up(200, 5, 8))[1]
    assert replace(sizes, features=0).steps == sizes.steps
    assert sized(*made_up(200, 5, 8), "class-gradients")[1].refit is False
