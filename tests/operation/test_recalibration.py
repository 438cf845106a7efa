"""One temperature, folded into the head: no prediction changes, the loss falls, it reverts."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn

import hessian_surgery as hs
from hessian_surgery.cli.inputs import digits_net
from hessian_surgery.data.splits import stratified_split
from hessian_surgery.directions.logit_changes import logits_after
from hessian_surgery.evidence.accuracies import rates
from hessian_surgery.evidence.costs import REMEDY
from hessian_surgery.model.classifier import as_classifier
from hessian_surgery.model.evaluation import answers_of, compute_logits
from hessian_surgery.model.temperature import fit_temperature
from hessian_surgery.operation import iteration
from hessian_surgery.operation import operate as operate_module
from hessian_surgery.operation.find_directions import find_directions
from hessian_surgery.operation.findings import make_findings
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.outcome import load_findings
from hessian_surgery.operation.problem import check_inputs, prepare
from hessian_surgery.operation.recalibration import can_recalibrate, find_overconfidence
from hessian_surgery.operation.step import TriedStep
from hessian_surgery.weights.tensorfile import read_tensors


def overconfident(scale=4.0, bias=True):
    """A linear net on overlapping clusters whose logits are too large, and its data."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(4, 6, generator=generator)
    labels = torch.arange(1200) % 4
    inputs = centres[labels] + 1.5 * torch.randn(1200, 6, generator=generator)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4, bias=bias))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs[:400]), labels[:400]).backward()
        optimizer.step()
    with torch.no_grad():
        net[2].weight *= scale
        if bias:
            net[2].bias *= scale
            net[2].bias[0] -= 1.5 * scale
    calibration, heldout = stratified_split(hs.as_labelled((inputs[400:], labels[400:])), (0.5, 0.5), 0)
    return net, {
        "training_data": (inputs[:400], labels[:400]),
        "calibration_data": calibration,
        "heldout_data": heldout,
    }


def test_the_temperature_is_the_one_with_the_least_loss():
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(500, 5, generator=generator)
    labels = torch.multinomial(torch.softmax(logits / 2.5, dim=1), 1, generator=generator).squeeze(1)
    found = fit_temperature(logits, labels)
    reference = minimize_scalar(
        lambda b: float(nn.functional.cross_entropy(logits.double() * b, labels)), bracket=(0.1, 1.0)
    )
    assert found == pytest.approx(1 / reference.x, rel=1e-3)
    assert found == pytest.approx(2.5, rel=0.15)


def temperature_on(net, images):
    """The temperature that fits a net's logits of images."""
    images = hs.as_labelled(images)
    return fit_temperature(compute_logits(as_classifier(net), images), images.labels)


def test_a_refitted_head_is_not_trusted_on_the_images_that_it_was_fitted_to():
    """On these it wants a lower temperature than elsewhere."""
    alone, corrected = [], []
    for seed in range(4):
        net, parts = digits_net(seed)
        data = {"training_data": parts.training, "heldout_data": parts.heldout, "calibration_data": parts.calibration}
        hs.operate(net, config=hs.SurgeryConfig(seed=seed), **data)
        wanted = temperature_on(net, parts.heldout)
        alone.append(math.log(temperature_on(net, parts.calibration) / wanted))
        again, _ = digits_net(seed)
        outcome = hs.operate(again, config=hs.SurgeryConfig(seed=seed, recalibrate=True), **data)
        corrected.append(math.log(outcome.findings.temperature / wanted))
    assert np.mean(alone) < -0.1
    assert abs(np.mean(corrected)) < 0.1


@pytest.mark.parametrize("bias", [True, False])
def test_predictions_stay_the_loss_falls_and_the_patch_reverts(tmp_path, bias):
    nets = [overconfident(bias=bias) for _ in range(2)]
    start = {name: tensor.clone() for name, tensor in nets[0][0].state_dict().items()}
    config = hs.SurgeryConfig(budget=0.01)
    plain = hs.operate(nets[0][0], config=config, **nets[0][1])
    mended = hs.operate(nets[1][0], config=replace(config, recalibrate=True), **nets[1][1])
    held = plain.findings.heldout, mended.findings.heldout
    assert torch.equal(held[0].after.predicted, held[1].after.predicted)
    temperature = mended.findings.temperature
    assert temperature is not None
    assert temperature > 1.5
    assert held[1].after.nll.mean() < held[0].after.nll.mean() - 0.1
    assert mended.findings.tests.calibration_error[1] < plain.findings.tests.calibration_error[1]
    # It is the one that fits the calibration images alone, but for what a small step knows of them.
    assert temperature == pytest.approx(temperature_on(nets[0][0], nets[0][1]["calibration_data"]), rel=0.02)
    assert mended.findings.changed == plain.findings.changed
    mended.save(tmp_path / "run")
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["recalibrated"] == {"temperature": temperature}
    patched, _ = read_tensors(tmp_path / "run/model.safetensors")
    back = mended.patch().revert(patched)
    assert all(torch.equal(back[name], start[name]) for name in start)
    assert load_findings(tmp_path / "run").temperature == temperature


class Doubled(nn.Module):
    """A net that does something to its logits after the last layer."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return 2 * self.net(x)


def test_a_head_that_cannot_be_found_or_may_not_move_is_refused():
    net, data = overconfident()
    with pytest.raises(hs.InputError, match=r"recalibrate: got True; it must be False for this model"):
        hs.operate(Doubled(net), config=hs.SurgeryConfig(recalibrate=True), **data)
    with pytest.raises(hs.InputError, match=r"recalibrate: got True; it must be False where the head may not move"):
        hs.operate(net, config=hs.SurgeryConfig(recalibrate=True, parameters="0.*"), **data)


def test_where_no_bias_may_move_the_default_is_advised():
    """It does what the model allows."""
    for parameters, bias in (("0.*", True), ("*", False)):
        net, data = overconfident(bias=bias)
        with pytest.raises(hs.InputError, match=r"^directions: got 'biases', but .* none that may move; give refit$"):
            hs.operate(net, config=hs.SurgeryConfig(directions="biases", parameters=parameters), **data)
        hs.operate(net, config=hs.SurgeryConfig(parameters=parameters), **data)


@pytest.mark.parametrize(("parameters", "advised"), [("*", True), ("0.*", False)])
def test_recalibration_is_advised_only_where_it_may_be_done(parameters, advised, tmp_path):
    net, data = overconfident()
    problem = check_inputs(net, *map(hs.as_labelled, list(data.values())[:2]), hs.SurgeryConfig(parameters=parameters))
    assert can_recalibrate(problem) is advised
    assert can_recalibrate(replace(problem, classifier=as_classifier(Doubled(net)))) is False
    outcome = hs.operate(net, config=hs.SurgeryConfig(parameters=parameters, budget=0.05), **data)
    labels = outcome.findings.heldout.labels
    # As if the operation had made the logits far too large.
    wrong = answers_of(20 * torch.eye(4)[(labels + (torch.arange(len(labels)) % 3 == 0)) % 4], labels)
    held = replace(outcome.findings.heldout, after=wrong)
    findings = make_findings(held, held, outcome.findings.asked, (), 0, free=advised)
    assert any("the loss rose" in warning for warning in findings.warnings)
    assert any(REMEDY in warning for warning in findings.warnings) is advised
    replace(outcome, findings=findings).save(tmp_path / "run")
    assert load_findings(tmp_path / "run").warnings == findings.warnings


def test_folds_are_recalibrated_each_on_its_own_images():
    _, data = overconfident()
    data.pop("heldout_data")
    config = hs.SurgeryConfig(budget=0.01)
    losses = []
    for recalibrate in (False, True):
        fresh, _ = overconfident()
        outcome = hs.operate(fresh, folds=2, config=replace(config, recalibrate=recalibrate), **data)
        losses.append(outcome.findings.tests.nll[1])
    assert losses[1] < losses[0] - 0.1


@pytest.mark.parametrize("margin", [1.0, 10.0, 100.0])
def test_where_every_answer_is_right_no_temperature_is_taken(margin):
    """The lower, the better; from wide margins the loss is exactly 0 long before that."""
    labels = torch.arange(400) % 4
    inputs = torch.eye(4)[labels] + 0.01 * torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
    net = nn.Sequential(nn.Linear(4, 4))
    with torch.no_grad():
        net[0].weight.copy_(margin * torch.eye(4))
    calibration, heldout = stratified_split((inputs[:300], labels[:300]), (0.5, 0.5), 0)
    data = {"training_data": (inputs[300:], labels[300:]), "calibration_data": calibration, "heldout_data": heldout}
    outcome = hs.operate(net, config=hs.SurgeryConfig(recalibrate=True, directions="biases"), **data)
    assert outcome.findings.temperature is None
    assert [said for said in outcome.findings.warnings if said.startswith("recalibrate: no temperature fits")]
    assert torch.equal(net[0].weight.detach(), margin * torch.eye(4))


def test_overconfidence_is_that_of_the_crossed_step_over_the_step_s_own(digits_parts):
    """By hand, of a halved step; 1 where one of the two gets every image right."""
    net, _ = digits_net(0)
    data = digits_parts.calibration
    problem, _ = prepare(net, digits_parts.training, data, hs.SurgeryConfig())
    directions, _ = find_directions(problem, problem.logits, None, Observer())
    coefficients = np.zeros(len(directions))
    coefficients[-1] = 0.8
    logits = logits_after(problem.classifier, problem.space, 0.5 * directions.step(coefficients), data)
    crossed = torch.empty_like(logits)
    for side in (0, 1):
        mine = (directions.sides == side).nonzero().squeeze(1)
        step = directions.step(0.5 * coefficients, side)
        crossed[mine] = logits_after(problem.classifier, problem.space, step, data.subset(mine))
    taken = TriedStep(0.5 * directions.step(coefficients), 0.5, rates(logits, data.labels, 10), logits, True)
    found = find_overconfidence(problem, directions, coefficients, taken)
    assert found == pytest.approx(
        fit_temperature(crossed, data.labels) / fit_temperature(logits, data.labels), rel=1e-4
    )
    assert found > 1
    perfect = replace(taken, logits=torch.eye(10)[data.labels])
    assert find_overconfidence(problem, directions, coefficients, perfect) == 1


def test_in_folds_each_image_was_left_out_once(digits_parts, monkeypatch):
    """So the mean step knows less of it than each operation does."""
    given = []
    taken = operate_module.recalibrate
    monkeypatch.setattr(iteration, "find_overconfidence", lambda *_: 1.5)
    monkeypatch.setattr(operate_module, "recalibrate", lambda problem, ratio: given.append(ratio) or taken(problem))
    net, _ = digits_net(0)
    data = {"training_data": digits_parts.training, "calibration_data": digits_parts.calibration}
    outcome = hs.operate(net, folds=2, config=hs.SurgeryConfig(recalibrate=True), **data)
    kept = sum(record.accepted for record in outcome.iterations)
    assert kept > 0
    assert given == [pytest.approx(1.5 ** (kept / 2 * 1 / 2))]
