"""What a class bias would have done, beside the delivered step, from the logits at hand."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_recalibration import overconfident
from torch import nn

import hessian_surgery as hs
from hessian_surgery.model.classifier import as_classifier
from hessian_surgery.model.evaluation import compute_logits
from hessian_surgery.operation.answer_text import simpler_lines
from hessian_surgery.operation.class_bias import fit_class_bias
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.outcome import load_findings
from hessian_surgery.operation.problem import prepare
from hessian_surgery.operation.proposal import operation_goal, survey


@pytest.mark.parametrize("bias", [True, False])
def test_the_class_bias_is_measured_on_the_held_out_images(tmp_path, bias):
    net, data = overconfident(bias=bias)
    if not bias:
        with torch.no_grad():
            net[2].weight[0] *= 0.5
    logits = compute_logits(as_classifier(net), data["heldout_data"])
    outcome = hs.operate(net, config=hs.SurgeryConfig(budget=0.01), **data)
    simpler = outcome.findings.simpler
    assert simpler is not None
    assert any(simpler.biases)
    predicted = (logits + torch.tensor(simpler.biases)).argmax(dim=1)
    assert torch.equal(simpler.images.before.predicted, predicted)
    held = data["heldout_data"].labels
    content = outcome.as_dict()["simpler"]
    assert content["method"] == "class-bias"
    assert content["accuracy"] == pytest.approx(float((predicted == held).double().mean()))
    per_class = [float((predicted[held == j] == j).double().mean()) for j in range(4)]
    assert content["sigma"] == pytest.approx(np.std(per_class))
    assert content["worst"] == pytest.approx(min(per_class))
    delivered = outcome.findings.heldout.metrics()[1]
    assert content["difference"]["accuracy"]["difference"] == pytest.approx(delivered.accuracy - content["accuracy"])
    # It helps: the first class was held down.
    assert content["sigma"] < outcome.findings.heldout.metrics()[0].sigma
    outcome.save(tmp_path / "run")
    assert load_findings(tmp_path / "run").simpler.as_dict() == json.loads(json.dumps(content), parse_float=float) | {
        "difference": content["difference"]
    }
    assert simpler_lines(outcome.findings)


def test_a_step_that_is_a_class_bias_says_so():
    net, data = overconfident()
    outcome = hs.operate(net, config=hs.SurgeryConfig(budget=0.01, parameters="2.bias"), **data)
    found = outcome.findings
    assert str(found.changed) == "4 of 92 weights: the head's biases"
    assert simpler_lines(found)[0].startswith("The step is itself a class bias")
    assert found.simpler.tests.churn < 0.05


def test_with_targets_a_class_bias_may_be_the_one_without_them():
    """Out of reach of any fit to the target alone: what the free choice gives is not left out."""
    net, data = overconfident()
    config = hs.SurgeryConfig(budget=0.01, parameters="2.bias", targets={"0": 0.99})
    problem, _ = prepare(net, data["training_data"], data["calibration_data"], config)
    goal = operation_goal(problem)
    found = survey(problem, 1, goal, {}, Observer())
    free = found.candidates.without_targets
    steps = len(free.steps) - len(free.rungs[-1])
    biases_only = replace(free, rungs=free.rungs[:-1], drawn=free.drawn[:, :steps])
    best = biases_only.choose(replace(goal, targets={})).step
    # Of the steps fitted to the target none is left: the free ones must be looked at.
    rungs = (found.candidates.rungs[0], ())
    only = replace(found.candidates, rungs=rungs, drawn=found.candidates.drawn[:, :1])
    biases = fit_class_bias(problem, replace(found, candidates=only), goal)
    unit = found.surrogate.shifts.double().numpy()
    assert biases == pytest.approx(unit * best.coefficients[: len(unit)], rel=1e-6)
    assert any(biases)


def test_the_loop_fits_none():
    net, data = overconfident()
    outcome = hs.operate(net, config=hs.LoopConfig(iterations=1, search=hs.SpikeSearch(spikes=2)), **data)
    assert outcome.as_dict()["simpler"] is None
    assert isinstance(net, nn.Sequential)


def test_in_folds_each_image_is_judged_by_a_class_bias_that_did_not_see_it(tmp_path):
    net, data = overconfident()
    data.pop("heldout_data")
    outcome = hs.operate(net, config=hs.SurgeryConfig(budget=0.01), folds=2, folder=tmp_path / "run", **data)
    simpler = outcome.findings.simpler
    assert simpler is not None
    assert simpler.biases == ()
    assert ("each at its own accuracy." in outcome.summary()) == (simpler.tests.churn > 0)
    assert simpler.metrics[0].sigma < outcome.findings.heldout.metrics()[0].sigma
    outcome.save(tmp_path / "run")
    assert torch.equal(load_findings(tmp_path / "run").simpler.images.before.nll, simpler.images.before.nll)


def test_a_refit_beside_it_does_not_change_the_class_bias():
    net, data = overconfident()
    found = []
    for directions in ("class-gradients", "refit"):
        config = hs.SurgeryConfig(budget=0.01, directions=directions)
        problem, _ = prepare(net, data["training_data"], data["calibration_data"], config)
        goal = operation_goal(problem)
        found.append(fit_class_bias(problem, survey(problem, 1, goal, {}, Observer()), goal))
    assert any(found[0])
    assert found[0] == pytest.approx(found[1])
