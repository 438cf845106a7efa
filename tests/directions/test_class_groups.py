import pytest
import torch
from torch import nn

import hessian_surgery as hs
from hessian_surgery.directions.class_gradients import class_gradients, gradient_vectors
from hessian_surgery.directions.class_groups import GROUPS, ClassGroups, count_groups, find_groups, group_classes
from hessian_surgery.directions.family import Probe
from hessian_surgery.evidence.leading_outputs import leading_outputs
from hessian_surgery.model.evaluation import compute_logits

WIDTH = 60


def confused(seed=0):
    """Sixty classes in thirty pairs that are confused with each other."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(1200) % WIDTH
    logits = torch.randn(1200, WIDTH, generator=draw)
    logits[torch.arange(1200), labels] += 9
    logits[torch.arange(1200), labels ^ 1] += 8.5
    return logits, labels


def test_classes_that_are_confused_share_a_group():
    logits, labels = confused()
    outputs = leading_outputs(logits, labels)
    names = [f"c{i}" for i in range(WIDTH)]
    found = group_classes(logits.gather(1, outputs), outputs, labels, names)
    assert len(found) == GROUPS
    assert sorted(label for members in found.members for label in members) == list(range(WIDTH))
    for members in found.members:
        assert all((label ^ 1) in members for label in members)
    first = found.members[0]
    assert found.names[0] == f"c{first[0]} and {len(first) - 1} more"


def test_a_class_of_interest_is_alone():
    logits, labels = confused()
    outputs = leading_outputs(logits, labels)
    names = [f"c{i}" for i in range(WIDTH)]
    found = group_classes(logits.gather(1, outputs), outputs, labels, names, alone=("c7", "c31"))
    assert found.members[:2] == ((7,), (31,))
    assert found.names[:2] == ("c7", "c31")
    assert len(found) == GROUPS + 2 == count_groups(WIDTH, 2)
    assert (count_groups(10), count_groups(21, 3)) == (10, 21)


def linear(width):
    torch.manual_seed(0)
    model = nn.Linear(6, width).double()
    data = hs.as_labelled((torch.randn(8 * width, 6, dtype=torch.float64), torch.arange(8 * width) % width))
    classifier = hs.Classifier(model)
    return Probe(classifier, hs.parameter_space(model), data, compute_logits(classifier, data)), data


def test_few_classes_are_groups_of_their_own():
    probe, data = linear(GROUPS)
    assert find_groups(probe).members == tuple((i,) for i in range(GROUPS))
    assert class_gradients(probe, data).labels == tuple(f"gradient of {i}" for i in range(GROUPS))


def test_a_group_s_gradient_is_that_of_its_mean_accuracy():
    """Classes of 8, 3 and 8 images count the same, in a plain gradient by autograd."""
    probe, data = linear(4)
    kept = torch.cat([(data.labels == i).nonzero()[:n, 0] for i, n in enumerate((8, 3, 8, 8))])
    uneven = data.subset(kept)
    groups = ClassGroups(("a", "b"), ((0, 1, 2), (3,)))
    names, vector = gradient_vectors(probe, uneven, "data", groups)
    assert names == ("a", "b")
    sure = torch.softmax(probe.classifier.module(uneven.inputs()) / probe.temperature, dim=1)
    right = sure[torch.arange(len(uneven)), uneven.labels]
    slopes = []
    for members in groups.members:
        mean = torch.stack([right[uneven.labels == label].mean() for label in members]).mean()
        (w, b) = torch.autograd.grad(mean, list(probe.classifier.module.parameters()), retain_graph=True)
        slopes.append(torch.cat([w.flatten(), b]))
    # The preconditioner is the same for both, up to a factor.
    ratios = [slope / vector(i) for i, slope in enumerate(slopes)]
    clear = slopes[0].abs() > 1e-4
    factor = (ratios[0] / ratios[1])[clear]
    assert torch.allclose(factor, factor.median(), rtol=1e-5)


def test_an_unknown_class_of_interest_is_refused():
    with pytest.raises(hs.InputError, match="classes_of_interest"):
        hs.SurgeryConfig(classes_of_interest=("dragon",)).check_classes(("ant", "bee"))
