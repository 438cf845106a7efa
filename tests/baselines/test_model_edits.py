import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import hessian_surgery as hs
from hessian_surgery.baselines.model_edits import ChainState, HeadEdit, LogitMap, WeightStep, apply_edits
from hessian_surgery.baselines.outputs import ModelOutputs
from hessian_surgery.directions.family import Directions, join
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.model.head import Head

DOUBLE = {"dtype": torch.float64}


def shifted(*shift):
    return LogitMap(torch.ones(3, **DOUBLE), torch.tensor(shift, **DOUBLE))


class Problem:
    """A float64 net, its images and two directions in its weights; steps are measured on a copy."""

    def __init__(self, bias=True):
        torch.manual_seed(0)
        self.module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3, bias=bias)).double()
        self.head = Head("2", self.module[2])
        self.inputs = torch.randn(200, 4, **DOUBLE)
        space = hs.parameter_space(self.module)
        vectors = nn.functional.normalize(torch.randn(2, space.dimension, **DOUBLE))
        outputs = torch.arange(3).expand(200, 3)
        changes = torch.zeros(2, 200, 3)
        self.directions = Directions("two", ("one", "other"), space, vectors.__getitem__, np.ones(2), outputs, changes)
        logits = self.logits()
        self.outputs = ModelOutputs(
            ("a", "b", "c"),
            logits.argmax(dim=1),
            logits,
            head=self.head,
            features=self.module[:2](self.inputs).detach(),
            after_step=self.after_step,
        )

    @torch.no_grad()
    def logits(self, module=None):
        return (module or self.module)(self.inputs)

    def after_step(self, step, positions=None):
        moved = copy.deepcopy(self.module)
        self.directions.space.of(moved).perturb(step)
        return self.logits(moved)

    def step(self, *coefficients):
        return WeightStep(self.directions, np.array(coefficients))

    def predicted(self, *edits):
        """Logits (N, C) after a chain of edits, as its state gives them."""
        state = ChainState.initial(self.outputs.logits)
        for edit in edits:
            state = state.after(edit, self.outputs)
        assert state.edits == edits
        return state.logits

    def applied(self, *edits):
        """Logits (N, C) of a copy whose weights the edits were applied to."""
        module = copy.deepcopy(self.module)
        apply_edits(module, self.head, edits)
        return self.logits(module)

    def agrees(self, *edits):
        predicted = self.predicted(*edits)
        found = self.applied(*edits)
        assert not torch.allclose(found, self.logits(), atol=1e-2)
        assert torch.equal(predicted.argmax(dim=1), found.argmax(dim=1))
        return torch.allclose(predicted, found, rtol=0, atol=1e-6)


@pytest.fixture
def problem():
    return Problem()


SCALED = LogitMap(torch.tensor([0.5, 2.0, 1.5], **DOUBLE), torch.tensor([1.0, -0.3, 0.2], **DOUBLE))


def test_a_folded_edit_gives_the_predicted_logits_and_leaves_the_original_alone(problem):
    before = {name: tensor.clone() for name, tensor in problem.module.state_dict().items()}
    other_head = HeadEdit(torch.randn(3, 6, **DOUBLE), torch.randn(3, **DOUBLE))
    for edit in (SCALED, other_head, problem.step(0.5, -1.0)):
        assert problem.agrees(edit)
    assert all(torch.equal(before[name], tensor) for name, tensor in problem.module.state_dict().items())


def test_predicted_logits_by_hand(problem):
    logits = problem.logits()
    step = problem.step(0.5, -1.0)
    assert torch.equal(problem.predicted(SCALED), logits * SCALED.scale + SCALED.shift)
    moved = problem.after_step(0.5 * problem.directions.vector(0) - problem.directions.vector(1))
    assert torch.allclose(problem.predicted(step), moved, atol=1e-12)


def test_a_bias_and_a_step_may_come_in_either_order(problem):
    bias = shifted(1.0, 0.0, -1.0)
    step = problem.step(0.3, 0.3)
    assert torch.allclose(problem.predicted(bias, step), problem.predicted(step, bias), atol=1e-12)
    assert problem.agrees(bias, step)
    assert problem.agrees(step, bias)


def test_steps_add_up(problem):
    one = problem.step(0.3, 0.0)
    two = problem.step(0.1, -0.4)
    assert torch.allclose(problem.predicted(one, two), problem.predicted(problem.step(0.4, -0.4)), atol=1e-9)
    assert problem.agrees(one, shifted(0.1, 0.2, 0.3), two)


def test_a_scale_multiplies_the_change_of_a_later_step(problem):
    step = problem.step(0.3, 0.3)
    change = problem.predicted(step) - problem.logits()
    assert torch.allclose(problem.predicted(SCALED, step), SCALED(problem.logits()) + SCALED.scale * change, atol=1e-12)


def test_a_step_and_then_a_scale_can_be_folded(problem):
    assert problem.agrees(problem.step(0.3, 0.3), SCALED)


def test_a_scale_and_then_a_step_can_be_folded(problem):
    assert problem.agrees(SCALED, problem.step(0.3, 0.3))


def test_a_step_reaches_the_weights_of_a_copy_and_no_others(problem):
    moved = copy.deepcopy(problem.module)
    apply_edits(moved, None, [problem.step(0.5, -1.0)])
    theirs, ours = (torch.cat([p.reshape(-1) for p in m.parameters()]) for m in (moved, problem.module))
    assert torch.allclose(theirs - ours, problem.directions.step(np.array([0.5, -1.0])), atol=1e-12)


@pytest.mark.parametrize("edit", [SCALED, HeadEdit(torch.ones(3, 6), torch.ones(3))])
def test_a_model_without_a_linear_head_is_refused(problem, edit):
    with pytest.raises(hs.InputError, match="model: its logits do not come from a linear layer"):
        apply_edits(problem.module, None, [edit])


def test_a_head_without_a_bias_takes_scales_but_no_shift():
    problem = Problem(bias=False)
    assert problem.agrees(LogitMap(SCALED.scale, torch.zeros(3)))
    before = problem.module[2].weight.clone()
    for edit in (SCALED, HeadEdit(torch.ones(3, 6), torch.ones(3))):
        with pytest.raises(hs.InputError, match="its head '2' has no bias"):
            apply_edits(problem.module, problem.head, [edit])
    assert torch.equal(before, problem.module[2].weight)


def test_another_head_needs_features(problem):
    logits_only = ModelOutputs(("a", "b", "c"), problem.outputs.labels, problem.outputs.logits)
    with pytest.raises(hs.InputError, match="linear layer that could be fitted again"):
        ChainState.initial(logits_only.logits).after(HeadEdit(torch.ones(3, 6), torch.ones(3)), logits_only)
    with pytest.raises(hs.InputError, match="only logits were given"):
        ChainState.initial(logits_only.logits).after(problem.step(1.0, 0.0), logits_only)


def test_a_step_along_biases_alone_needs_no_pass(examined, digits_images):
    """Its logits are known: they are those that a forward pass gives."""
    classifier, outputs = examined
    directions = join([outputs.bias, outputs.family("class-gradients")])
    coefficients = np.zeros(len(directions))
    coefficients[:10] = np.linspace(-1, 1, 10)
    edit = WeightStep(directions, coefficients)
    blind = replace(outputs, after_step=lambda *_: pytest.fail("a pass was made"))
    found = ChainState.initial(outputs.logits).after(edit, blind)
    module = copy.deepcopy(classifier.module)
    apply_edits(module, outputs.head, [edit])
    assert torch.allclose(found.logits, compute_logits(hs.Classifier(module), digits_images), atol=1e-4)
    coefficients[12] = 0.5
    assert WeightStep(directions, coefficients).logit_shift is None
