"""Folds: every image is judged by an operation that did not see it; the mean is delivered."""

import io
import json
import signal
from dataclasses import replace
from functools import cache

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from test_operate import check_contract
from test_state_file import check_kills

import hessian_surgery as hs
from hessian_surgery.cli.tables import print_findings
from hessian_surgery.evidence.paired_tests import paired_tests
from hessian_surgery.model.evaluation import answer
from hessian_surgery.model.smallnet import SmallNet
from hessian_surgery.operation.cost import estimate_cost
from hessian_surgery.operation.folds import divide, folds_ended
from hessian_surgery.operation.observer import Observer
from hessian_surgery.operation.outcome import load_findings
from hessian_surgery.report.card import model_card
from hessian_surgery.report.markdown import to_markdown
from hessian_surgery.report.run import load_run

FOLDS = 2
LOOP = hs.LoopConfig(iterations=2, amplitude=0.02, search=hs.SpikeSearch(spikes=3, hessian_samples=64))
SHORT = {"default": hs.SurgeryConfig(budget=0.02, iterations=1), "loop": LOOP}
SAID = (
    "The delivered step is the mean of 2 operations, each without one fold of the 300 images. The figures are theirs, "
    "each on the fold that it did not see."
)


class Watch(Observer):
    """Notes folds and iterations; stops at an iteration, counted over all operations."""

    def __init__(self, stop=None):
        self.folds, self.iterations, self.stop = [], [], stop

    def fold(self, number, total):
        self.folds.append((number, total))

    def iteration(self, record):
        self.iterations.append((len(self.folds), record.iteration))
        if len(self.iterations) == self.stop:
            raise KeyboardInterrupt


def net(weights):
    module = SmallNet(10)
    module.load_state_dict(weights)
    return module.eval()


@pytest.fixture(scope="session")
def few(digits_images):
    """Thirty labelled images of each class."""
    return hs.cap_per_class(digits_images, 30)


def in_folds(model, parts, images, config, **options):
    return hs.operate(
        model, training_data=parts.training, calibration_data=images, folds=FOLDS, config=config, **options
    )


@pytest.fixture(scope="session")
def finish(_trained, digits_parts, few, tmp_path_factory):
    """Makes a finished run of either algorithm: config, module, outcome, folder, observer."""

    @cache
    def made(name):
        module, folder, watch = net(_trained), tmp_path_factory.mktemp("run"), Watch()
        outcome = in_folds(module, digits_parts, few, SHORT[name], observer=watch, folder=folder)
        outcome.save(folder)
        hs.write_report(folder)
        return SHORT[name], module, outcome, folder, watch

    return made


@pytest.fixture(params=SHORT)
def finished(request, finish):
    return finish(request.param)


def test_each_image_is_judged_by_an_operation_that_did_not_see_it(finished, _trained, digits_parts, few):
    """The answers to a fold are those of an operation on the other folds, done by itself."""
    config, _, outcome, _, watch = finished
    assert watch.folds == [(1, FOLDS), (2, FOLDS)]
    assert outcome.fold_of.bincount().tolist() == [150, 150]
    last = outcome.fold_of == FOLDS - 1
    rest, unseen = few.subset((~last).nonzero().squeeze(1)), few.subset(last.nonzero().squeeze(1))
    alone = hs.operate(
        net(_trained), training_data=digits_parts.training, calibration_data=rest, heldout_data=unseen, config=config
    )
    found, expected = outcome.findings.heldout, alone.findings.heldout
    assert any(record.accepted for record in alone.iterations)
    assert torch.equal(found.after.nll[last], expected.after.nll)
    assert torch.equal(found.after.predicted[last], expected.after.predicted)
    assert torch.equal(found.before.nll, answer(hs.Classifier(net(_trained)), few).nll)
    assert torch.equal(found.labels, few.labels)


def test_the_delivered_step_is_the_mean_of_the_operations(finished, _trained, digits_parts, few):
    """Each operation, done by itself, gives a step; the patched weights are moved by their mean."""
    config, module, outcome, _, watch = finished
    moved = []
    for fold in range(FOLDS):
        alone = net(_trained)
        mine = outcome.fold_of == fold
        rest, unseen = few.subset((~mine).nonzero().squeeze(1)), few.subset(mine.nonzero().squeeze(1))
        hs.operate(
            alone, training_data=digits_parts.training, calibration_data=rest, heldout_data=unseen, config=config
        )
        moved.append(alone.state_dict())
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            mean = torch.stack([state[name] for state in moved]).mean(dim=0)
            torch.testing.assert_close(tensor, mean, rtol=0, atol=1e-6)
    assert not all(torch.equal(t, _trained[name]) for name, t in module.state_dict().items())
    calibration = outcome.findings.calibration
    assert torch.equal(calibration.after.nll, answer(hs.Classifier(module), few).nll)
    assert all(torch.equal(outcome.weights[name], t) for name, t in module.state_dict().items())
    assert [(record.fold, record.iteration) for record in outcome.iterations] == watch.iterations
    assert not torch.equal(calibration.after.nll, outcome.findings.heldout.after.nll)


def test_the_run_folder_is_that_of_any_run(finished):
    _, _, outcome, folder, _ = finished
    assert {path.name for path in folder.iterdir()} == {
        *("config.json", "history.jsonl", "result.json", "report.html"),
        *("predictions.safetensors", "patch.safetensors", "model.safetensors"),
    }
    result = json.loads((folder / "result.json").read_text())
    check_contract(result, classes=10)
    assert (result["split"]["folds"], result["split"]["note"]) == (FOLDS, SAID)
    assert (result["split"]["calibration"], result["split"]["heldout"]) == (300, 300)
    predictions = load_file(folder / "predictions.safetensors")
    assert torch.equal(predictions["heldout.fold"], outcome.fold_of + 1)
    assert load_findings(folder).tests == outcome.findings.tests
    plain = paired_tests(outcome.findings.heldout, outcome.config.seed).accuracy
    low, high = outcome.findings.tests.accuracy.interval
    assert low == pytest.approx(plain.difference + 1.06 * (plain.interval[0] - plain.difference))
    assert high - low == pytest.approx(1.06 * (plain.interval[1] - plain.interval[0]))
    if simpler := outcome.findings.simpler:
        plain = paired_tests(simpler.images, outcome.config.seed).accuracy
        low, high = simpler.tests.accuracy.interval
        assert high - low == pytest.approx(1.06 * (plain.interval[1] - plain.interval[0]))


def test_every_report_says_what_the_figures_are(finished):
    folder = finished[3]
    run = load_run(folder)
    terminal = Console(file=io.StringIO(), width=80, no_color=True)
    print_findings(terminal, run.findings)
    assert SAID in " ".join(terminal.file.getvalue().split())
    assert "300 images in 2 folds" in terminal.file.getvalue()
    assert SAID in to_markdown(run.findings, run.result["ended"])
    assert model_card(run).count(SAID) == 2
    assert "split: cross-fitted in 2 folds" in model_card(run)
    page = (folder / "report.html").read_text()
    assert SAID in page
    assert "which nothing was fitted to" not in page


@pytest.mark.parametrize(("name", "stop"), [("default", 2), ("loop", 1), ("loop", 3), ("loop", 4)])
def test_a_stopped_run_goes_on_bit_for_bit(finish, _trained, digits_parts, few, tmp_path, name, stop):
    config, _, whole, _, seen = finish(name)
    module = net(_trained)
    with pytest.raises(KeyboardInterrupt):
        in_folds(module, digits_parts, few, config, folder=tmp_path, observer=Watch(stop))
    assert all(torch.equal(t, _trained[name]) for name, t in module.state_dict().items())
    watch = Watch()
    resumed = in_folds(module, digits_parts, few, config, folder=tmp_path, observer=watch, resume=True)
    assert all(torch.equal(resumed.weights[name], t) for name, t in whole.weights.items())
    for part in ("calibration", "heldout"):
        found, expected = (getattr(each.findings, part).tensors() for each in (resumed, whole))
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    stopped_in = seen.iterations[stop - 1][0]
    done_again = {fold for fold, _ in watch.iterations}
    assert done_again == set(range(stopped_in, FOLDS + 1))


def test_a_finished_fold_of_another_run_is_not_taken(_trained, digits_parts, few, tmp_path):
    module = net(_trained)
    with pytest.raises(KeyboardInterrupt):
        in_folds(module, digits_parts, few, LOOP, folder=tmp_path, observer=Watch(4))
    place = tmp_path / "checkpoint/fold-1"
    assert {path.name for path in place.iterdir()} == {"answers.safetensors", "history.jsonl"}
    half = {name: torch.float16 if t.is_floating_point() else t.dtype for name, t in _trained.items()}
    with pytest.raises(hs.InputError, match=r"folds: without fold 1 of 2, resume: .*fold-1 belongs to"):
        in_folds(module, digits_parts, few, LOOP, folder=tmp_path, resume=True, stored_as=half)
    (place / "answers.safetensors").write_text("broken")
    with pytest.raises(hs.InputError, match=r"answers\.safetensors cannot be read"):
        in_folds(module, digits_parts, few, LOOP, folder=tmp_path, resume=True)


def test_what_does_not_fit_together_is_refused_in_one_line(trained, digits_parts, few):
    def refused(match, **options):
        with pytest.raises(hs.InputError, match=match) as caught:
            hs.operate(trained, training_data=digits_parts.training, **{"calibration_data": few, **options})
        assert "\n" not in str(caught.value)

    refused("^folds: got 5, and heldout_data as well; give one of the two$", folds=5, heldout_data=few)
    refused("^heldout_data: missing; give held-out images, or folds=5 to judge without them$")
    refused("^folds: got 1; it must be a whole number, at least 2$", folds=1)
    refused(r"^folds: got 5\.0; it must be a whole number, at least 2$", folds=5.0)
    fewer = few.subset(torch.cat([(few.labels != 4).nonzero().squeeze(1), (few.labels == 4).nonzero()[:4, 0]]))
    refused(
        "^calibration_data, in 5 folds: class '4' has 4 samples; give at least 5 of each class$",
        folds=5,
        calibration_data=fewer,
    )


def test_copies_of_an_image_are_in_one_fold(few):
    fold_of = divide(few, 5, list(range(300)), 0)
    assert fold_of.bincount().tolist() == [60] * 5
    assert [len(set(fold_of[few.labels == label].tolist())) for label in range(10)] == [5] * 10
    assert torch.equal(divide(few, 5, list(range(300)), 0), fold_of)
    assert not torch.equal(divide(few, 5, list(range(300)), 1), fold_of)
    firsts = list(range(300))
    firsts[7] = next(i for i in range(300) if fold_of[i] != fold_of[7])
    moved = divide(few, 5, firsts, 0)
    assert moved[7] == moved[firsts[7]]
    assert int((moved != fold_of).sum()) == 1
    original = int((fold_of == 1).nonzero()[0])
    with pytest.raises(hs.InputError, match="folds: got 5, but too many images are copies of others"):
        divide(few, 5, [original if fold_of[i] == 0 else i for i in range(300)], 0)


def test_copies_among_the_images_are_named(_trained, digits_parts, few):
    twice = few.subset(torch.cat([torch.arange(300), torch.tensor([3, 4])]))
    config = replace(LOOP, iterations=1)
    outcome = in_folds(net(_trained), digits_parts, twice, config)
    index = few.index[[3, 4]].tolist()
    assert outcome.findings.warnings[-1].startswith("2 images of calibration_data are copies of others there: index")
    assert outcome.findings.warnings[-1].endswith("each is in the fold of its original")
    (shared,) = outcome.split["shared"]
    assert shared["pairs"] == [(i, i) for i in index]
    assert torch.equal(outcome.fold_of[300:], outcome.fold_of[3:5])


def test_what_the_operations_did_is_said():
    assert folds_ended(2, 2).startswith("Each of 2 operations, each without one fold, kept a step;")
    assert folds_ended(1, 2).startswith("1 of 2 operations, each without one fold, kept a step;")
    assert folds_ended(0, 2).startswith("Nothing was done: none of 2 operations")


@pytest.mark.parametrize("name", SHORT)
def test_a_dry_run_counts_all_operations(trained, digits_parts, few, name):
    one, five = (
        estimate_cost(hs.Classifier(trained), digits_parts.training, few, SHORT[name], folds) for folds in (None, 5)
    )
    assert (one.operations, five.operations) == (1, 5)
    for field in ("products", "gradients", "passes", "backward"):
        assert getattr(five, field) == 5 * getattr(one, field)
    assert one.images < five.images <= 5 * one.images
    assert five.total_bytes <= one.total_bytes  # folds have no front


@pytest.mark.full
def test_killed_and_resumed(tmp_path, checkpoint):
    options = ("--preset", "loop", "--hessian-samples", "64", "--spikes", "3", "--folds", "2")
    check_kills(tmp_path, checkpoint, 4, signal.SIGKILL, options)
