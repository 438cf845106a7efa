import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import hessian_surgery as hs
from conftest import points
from hessian_surgery.baselines.outputs import ModelOutputs
from hessian_surgery.baselines.posthoc import FROM_LOGITS
from hessian_surgery.cli.compare import write_advised
from hessian_surgery.cli.inputs import OpenedModel
from hessian_surgery.comparison.advice import advise
from hessian_surgery.comparison.compare import _after_training, compare, compare_logits, open_compared
from hessian_surgery.comparison.compared_model import compute_outputs, matched_search
from hessian_surgery.comparison.entries import parse_entry
from hessian_surgery.comparison.protocol import Protocol, Split
from hessian_surgery.comparison.run_context import RunContext
from hessian_surgery.comparison.run_entry import fit_chain
from hessian_surgery.comparison.tables import to_markdown
from hessian_surgery.evidence.accuracies import rates
from hessian_surgery.model.evaluation import predict
from hessian_surgery.paper.loop import Observer
from hessian_surgery.report.comparison_page import comparison_page

QUICK = hs.LoopConfig(iterations=1, search=hs.SpikeSearch(hessian_samples=64))
LOSSES = {"focal": hs.focal, "cross-entropy": hs.cross_entropy}
METHODS = ("class-bias", "spikes", "spikes:3", "class-bias+spikes", "spikes+class-bias", "random", "last-layer")


@pytest.fixture
def compared(trained, digits_images, digits_parts):
    def call(*methods, splits=2, epochs=1, seed=0, model=trained, data=digits_images, **options):
        protocol = Protocol(methods, splits, budgets=(0.0, 0.01), epochs=epochs, seed=seed)
        training = digits_parts.training
        return compare(model, data=data, training_data=training, protocol=protocol, config=QUICK, **options)

    return call


def without_times(fronts):
    return [replace(row, seconds=0) for row in fronts.rows]


def test_a_comparison(compared, trained, digits_images):
    before = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
    fronts = compared(*METHODS)
    assert all(torch.equal(before[name], tensor) for name, tensor in trained.state_dict().items())
    assert [(row.name, row.budget) for row in fronts.rows] == [("nothing", None)] + [
        (name, budget) for name in METHODS for budget in (0.0, 0.01)
    ]
    for row in fronts.rows:
        figures = (row.delta_accuracy, row.sigma, row.sigma_se, row.worst, row.balanced_accuracy, row.seconds)
        assert np.isfinite(figures).all()
        assert (row.splits, row.reasons) == (2, {})
        assert set(row.paired) == {"class-bias", "spikes"} - {row.name}
    nothing = fronts.row("nothing")
    assert (nothing.delta_accuracy, nothing.sigma) == (0, fronts.base["sigma"])
    assert all(fronts.row(name, 0.01).sigma < nothing.sigma for name in METHODS if name != "random")
    assert advise(fronts).method in METHODS
    assert {len(shares) for shares in fronts.bias_shares.values()} == {9, 10}
    assert fronts.predicted["spikes@0.01"].shape == (2, len(digits_images))
    assert compared("class-bias", seed=5).row("class-bias", 0.0).sigma != fronts.row("class-bias", 0.0).sigma


def test_spikes_after_a_training_are_those_of_its_own_loss(trained, digits_images, digits_parts):
    """Section 9.2: the focal Hessian after focal training; a stratified batch after balanced."""
    original = open_compared(trained, digits_images, digits_parts.training, QUICK)
    protocol = Protocol(("focal+spikes",), 1, epochs=1)
    found = _after_training(original, "focal", protocol, None, Observer())
    spikes = compute_outputs(found, ["spikes"], Observer()).directions["spikes"]
    batch = hs.hessian_batch(digits_parts.training, 64)
    net = found.classifier.module
    by_loss = {name: hs.lanczos(hs.Hessian(net, batch, loss=loss), 1, iteration=1) for name, loss in LOSSES.items()}
    overlap = {name: abs(float(found.vector(0) @ spikes.vector(0))) for name, found in by_loss.items()}
    assert overlap["focal"] > 0.9999 > overlap["cross-entropy"]
    search = hs.SpikeSearch(spikes=4, loss="focal")
    assert matched_search(search, "finetune") == hs.SpikeSearch(spikes=4)
    assert matched_search(search, "class-balanced") == hs.SpikeSearch(spikes=4, hessian_sampling="stratified")


@pytest.mark.full
def test_the_end_of_a_whole_operation_is_trained_on(trained, digits_images, digits_parts):
    """Table 9 fine-tunes Algorithm 2's end point; on the first split alone."""
    names = ("loop", "loop+bulk", "loop+finetune", "operate+finetune", "finetune")
    protocol = Protocol(names, 2, budgets=(0.0, 0.01), epochs=1)
    config = replace(QUICK, returned="last", rollback_drop=1.0, rollback_sigma=1.0)
    data = {"data": digits_images, "training_data": digits_parts.training}
    fronts = compare(trained, **data, protocol=protocol, config=config)
    for name in names[1:4]:
        assert (fronts.row(name).splits, fronts.row(name).reasons) == (1, {})
    ends = [fronts.predicted[f"{name}@None"][0] for name in ("nothing", "loop", "loop+finetune", "finetune")]
    changed = [int((one != two).sum()) for one, two in itertools.combinations(ends, 2)]
    assert min(changed) > 0
    # A little training moves less than the operation did, so it starts where that ended.
    assert int((ends[1] != ends[2]).sum()) < int((ends[0] != ends[1]).sum())


@pytest.mark.parametrize(
    "name", ["class-bias", "spikes", "last-layer", "vector-scaling+class-gradients", "class-bias+one-step"]
)
def test_no_held_out_label_is_seen(examined, digits_images, name):
    _, outputs = examined
    split = Protocol().make_splits(digits_images)[0]
    labels = outputs.labels.clone()
    labels[split.heldout] = labels[split.heldout].flip(0)
    spoiled = replace(outputs, labels=labels)
    entry = parse_entry(name)
    one, two = (
        fit_chain(entry, RunContext(o, o, [split], Protocol(), Observer()), split, (0.0, 0.01))
        for o in (outputs, spoiled)
    )
    for budget in (0.0, 0.01):
        assert torch.equal(one[budget].logits, two[budget].logits)
        assert not torch.equal(one[budget].logits, outputs.logits)


def test_no_more_accuracy_is_given_up_than_the_budget_allows():
    """There are two classes and one is rare: lowering σ costs accuracy."""
    labels = (torch.arange(2000) % 5 == 0).long()
    points = labels + torch.randn(2000, generator=torch.Generator().manual_seed(0))
    logits = torch.stack([torch.zeros(2000), points - 1.9], dim=1)
    outputs = ModelOutputs(("many", "few"), labels, logits)
    calibration = torch.arange(1000)
    split = Split(calibration, calibration + 1000)
    budgets = (0.0, 0.02, 0.05, 0.3)
    context = RunContext(outputs, outputs, [split], Protocol(), Observer(), terms=hs.SurgeryConfig(max_drop=1.0))
    ends = fit_chain(parse_entry("class-bias"), context, split, budgets)
    base = rates(logits[calibration], labels[calibration], 2)
    found = [rates(ends[budget].logits[calibration], labels[calibration], 2) for budget in budgets]
    assert all(base.accuracy - budget - 1e-9 <= f.accuracy for budget, f in zip(budgets, found, strict=True))
    assert base.sigma >= found[0].sigma > found[1].sigma > found[2].sigma > found[3].sigma


@pytest.mark.parametrize("shift", [0.0, 2.5])
def test_a_negative_budget_gains_accuracy_or_does_nothing(shift):
    """Two classes; the logits are the best there are, but for a shift that costs accuracy."""
    labels = torch.arange(2000) % 2
    points = labels + torch.randn(2000, generator=torch.Generator().manual_seed(1))
    logits = torch.stack([torch.zeros(2000), points - 0.5 - shift], dim=1)
    outputs = ModelOutputs(("left", "right"), labels, logits)
    calibration = torch.arange(1000)
    split = Split(calibration, calibration + 1000)
    context = RunContext(outputs, outputs, [split], Protocol(), Observer(), terms=hs.SurgeryConfig(max_drop=1.0))
    budgets = (-0.02, -0.005, 0.0)
    ends = fit_chain(parse_entry("class-bias"), context, split, budgets)
    base, held = (rates(logits[part], labels[part], 2) for part in (calibration, split.heldout))
    for budget in budgets[:2]:
        found = rates(ends[budget].logits[calibration], labels[calibration], 2)
        if shift:
            assert found.accuracy >= base.accuracy - budget
            assert rates(ends[budget].logits[split.heldout], labels[split.heldout], 2).accuracy > held.accuracy
        else:
            assert torch.equal(ends[budget].logits, logits)


@pytest.mark.full
def test_only_a_budget_that_is_not_negative_has_a_whole_operation(trained, digits_images, digits_parts):
    def rows(budgets):
        protocol = Protocol(("operate",), splits=1, budgets=budgets)
        fronts = compare(
            trained, data=digits_images, training_data=digits_parts.training, protocol=protocol, config=QUICK
        )
        assert advise(fronts).sentence
        return [(row.name, row.budget) for row in fronts.rows[1:]]

    assert rows((-0.01, 0.0)) == [("class-bias", -0.01), ("class-bias", 0.0), ("operate", 0.0)]
    assert rows((-0.01,)) == [("class-bias", -0.01), ("operate", None)]  # the latter says why it failed


@pytest.mark.full
def test_one_step_has_a_row_at_each_budget(compared, trained, digits_images):
    names = ("one-step", "one-step:spikes", "one-step+class-bias", "class-bias+one-step")
    before = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
    fronts = compared(*names)
    assert all(torch.equal(before[name], tensor) for name, tensor in trained.state_dict().items())
    nothing = fronts.row("nothing")
    for name in names:
        for budget in (0.0, 0.01):
            row = fronts.row(name, budget)
            assert (row.splits, row.reasons) == (2, {})
            assert np.isfinite((row.delta_accuracy, row.sigma, row.worst, row.balanced_accuracy)).all()
            assert fronts.predicted[f"{name}@{budget}"].shape == (2, len(digits_images))
    assert fronts.row("one-step", 0.01).sigma < nothing.sigma
    assert fronts.row("one-step+class-bias", 0.01).sigma < nothing.sigma
    assert {"class-gradients", "spikes"} <= set(fronts.bias_shares)


def test_a_final_comparison_gives_every_split_the_same_images_to_judge(trained, digits_images, digits_parts):
    protocol = Protocol(("class-bias",), splits=3, budgets=(0.01,), part="final")
    fronts = compare(trained, data=digits_images, training_data=digits_parts.training, protocol=protocol, config=QUICK)
    assert fronts.row("nothing").sigma_spread == 0
    assert fronts.row("class-bias", 0.01).sigma_spread > 0
    assert fronts.row("class-bias", 0.01).sigma < fronts.row("nothing").sigma


@pytest.mark.full
def test_whole_operations_leave_the_model_as_it_was(compared, trained):
    """The default operation has a row at each budget; the loop knows no budget, so it has one."""
    before = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
    fronts = compared("loop", "operate")
    assert all(torch.equal(before[name], tensor) for name, tensor in trained.state_dict().items())
    whole = [row for row in fronts.rows if row.name in ("loop", "operate")]
    assert [(row.name, row.budget) for row in whole] == [("loop", None), ("operate", 0.0), ("operate", 0.01)]
    for row in whole:
        assert (row.splits, row.reasons) == (2, {})
        assert sum(row.verdicts.values()) == 2
        assert set(row.verdicts) <= {"better", "no detectable change", "worse"}
    judged = [row for row in fronts.rows if row.verdicts and row not in whole]
    assert {row.name for row in judged} == {"class-bias"}
    assert all(row.budget >= 0 for row in judged)
    assert fronts.row("operate", 0.01).sigma < fronts.row("nothing").sigma


def test_a_whole_operation_gets_its_budget():
    """There are two classes and one is rare: lowering σ costs accuracy."""
    labels = (torch.arange(2400) % 5 == 0).long()
    points = labels + torch.randn(2400, generator=torch.Generator().manual_seed(0))
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0], [1.0]]))
        model.bias.copy_(torch.tensor([0.0, -1.9]))
    data, training = ((points[part, None], labels[part]) for part in (slice(0, 2000), slice(2000, 2400)))
    protocol = Protocol(("operate",), splits=1, budgets=(0.0, 0.01, 0.02))
    fronts = compare(model, data=data, training_data=training, protocol=protocol)
    rows = [fronts.row("operate", budget) for budget in protocol.budgets]
    assert fronts.base["sigma"] >= rows[0].sigma > rows[1].sigma > rows[2].sigma
    assert rows[0].delta_accuracy > rows[1].delta_accuracy > rows[2].delta_accuracy
    assert rows[2].verdicts == {"better": 1}
    assert "at a budget of 1 pp; 1 better at a budget of 2 pp.\n" in to_markdown(fronts)


@pytest.mark.full
@pytest.mark.parametrize("directions", ["refit", "class-gradients", "spikes", "both"])
def test_operate_is_the_default_operation_with_its_directions(
    compared, trained, digits_images, digits_parts, directions
):
    name = "operate" if directions == "refit" else f"operate:{directions}"
    predicted = compared(name, splits=1).predicted[f"{name}@0.01"][0]
    split = Protocol((name,), 1, budgets=(0.0, 0.01)).make_splits(digits_images)[0]
    hs.operate(
        trained,
        training_data=digits_parts.training,
        calibration_data=digits_images.subset(split.calibration),
        heldout_data=digits_images.subset(split.heldout),
        config=hs.SurgeryConfig(directions=directions, budget=0.01, search=QUICK.search),
    )
    assert torch.equal(predict(hs.Classifier(trained), digits_images), predicted.long())


def test_a_class_with_a_single_image_gives_reasons_and_no_crash(compared, digits_images):
    single = (digits_images.labels == 3).nonzero()[1:, 0]
    kept = digits_images.subset(torch.tensor([i for i in range(len(digits_images)) if i not in set(single.tolist())]))
    fronts = compared("spikes", "last-layer", "loop", data=kept)
    for row in fronts.rows[1:]:
        assert row.splits == 0
        assert set(row.reasons) == {0, 1}
    reason = "calibration data: class '3' has no sample"
    assert fronts.row("spikes", 0.0).as_dict()["reason"].startswith(reason)
    assert advise(fronts).method == "nothing"
    assert reason in advise(fronts).sentence


@pytest.mark.full
def test_trainings_and_chains_with_them(compared, trained, tmp_path):
    before = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
    names = ("focal", "focal+spikes", "spikes+finetune")
    fronts = compared(*names, folder=tmp_path / "out")
    assert all(torch.equal(before[name], tensor) for name, tensor in trained.state_dict().items())
    assert (fronts.row("focal").splits, fronts.row("spikes+finetune").splits) == (2, 1)
    assert all(row.reasons == {} for row in fronts.rows)
    assert fronts.row("focal+spikes", 0.01).splits == 2
    assert fronts.row("focal+spikes", 0.01).sigma != fronts.row("focal").sigma
    assert not torch.equal(fronts.predicted["focal@None"], fronts.predicted["nothing@None"])
    kept = {path.name for path in (tmp_path / "out").iterdir()}
    assert kept == {"training-focal", "training-spikes+finetune"}
    assert without_times(compared(*names, folder=tmp_path / "out")) == without_times(fronts)


@pytest.mark.full
def test_a_second_comparison_is_the_same(compared):
    fronts = without_times(compared(*METHODS))
    again = without_times(compared("spikes", "last-layer"))
    assert again == [row for row in fronts if row.name in {r.name for r in again}]


@pytest.mark.full
def test_a_method_does_not_depend_on_the_others(compared):
    alone = compared("spikes")
    beside = compared("spikes", "spikes:12")
    assert [len(f.edits["spikes"][0].coefficients.nonzero()[0]) for f in (alone, beside)] == [9, 9]


@pytest.mark.full
def test_edits_of_a_trained_model_are_no_patch_of_the_original(compared, trained, digits_parts, tmp_path):
    fronts = compared("focal+class-bias")
    advice = replace(advise(fronts), method="focal+class-bias")
    said = write_advised(tmp_path, fronts, OpenedModel(trained, digits_parts, None, {}), advice)
    assert said == "no patch: focal+class-bias changes more than the head's logits"
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_a_model_without_a_linear_head_is_still_compared(compared, trained):
    model = nn.Sequential(trained, nn.LogSoftmax(dim=1))
    fronts = compared("spikes", "last-layer", "tau-norm", model=model)
    assert "needs a linear head" in fronts.row("last-layer", 0.0).reasons[0]
    assert "needs a linear head" in fronts.row("tau-norm", 0.0).reasons[0]
    assert fronts.row("spikes", 0.0).splits == fronts.row("class-bias", 0.0).splits == 2


@pytest.mark.full
def test_methods_on_logits_share_one_pass_and_budgets_with_one_step_share_another(trained, digits_images, digits_parts):
    seen = []
    trained.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    config = hs.SurgeryConfig(batch_size=128)

    def images_seen(*methods, budgets):
        seen.clear()
        protocol = Protocol(methods, 1, budgets=budgets)
        compare(trained, data=digits_images, training_data=digits_parts.training, protocol=protocol, config=config)
        return sum(seen)

    # Besides the pass: checks on 32 images, three in each of two places, and looks at 2 and at 1.
    checks = 2 * 3 * 32 + 2 + 1
    assert images_seen(*FROM_LOGITS, "last-layer", budgets=(0.0, 0.01)) <= len(digits_images) + checks
    few, many = (images_seen("class-gradients", budgets=budgets) for budgets in ((-0.9,), (-0.9, -0.8, -0.7)))
    assert many == few  # nothing can be gained so much: no step is taken
    one, same = (images_seen("class-gradients", budgets=budgets) for budgets in ((0.5,), (0.5, 0.6, 0.7)))
    assert same == one > few


@pytest.mark.full
def test_cached_logits_give_the_same_front(compared):
    whole = compared(*FROM_LOGITS)
    cached = compare_logits(whole.outputs, Protocol(FROM_LOGITS, 2, (0.0, 0.01)))
    assert without_times(cached) == without_times(whole)
    with pytest.raises(hs.InputError, match="methods: spikes needs the model; from logits you can have nothing, temp"):
        compare_logits(whole.outputs, Protocol(("spikes",)))
    with pytest.raises(hs.InputError, match="focal needs the model"):
        compare_logits(whole.outputs, Protocol(("focal+class-bias",)))


def test_a_comparison_of_other_data_speaks_of_samples():
    torch.manual_seed(0)
    twice = points(60, 0).subset(torch.cat([torch.arange(180), torch.tensor([0])]))
    protocol = Protocol(("class-bias",), splits=2)
    fronts = compare(nn.Linear(2, 3), data=twice, training_data=points(30, 1), protocol=protocol)
    content = fronts.as_dict() | {"advice": {"sentence": ""}, "inputs": {}, "seed": 0, "environment": {}}
    page = re.sub(r"<(script|style).*?</\1>", "", comparison_page(content), flags=re.DOTALL)
    assert fronts.warnings
    for said in (page, to_markdown(fronts), *fronts.warnings):
        assert re.findall(r".{30}\bimages?\b.{9}", said) == []
    assert "181 samples in 3 classes" in page


def test_a_comparison_in_python_is_saved_as_the_command_saves_it(compared, tmp_path):
    folder = tmp_path / "front"
    fronts = compared("class-bias", "operate", folder=folder)
    assert [path.name for path in folder.iterdir()] == ["splits-operate.safetensors"]
    hs.save_comparison(fronts, folder)
    assert {path.name for path in folder.iterdir()} == {
        *("compare.json", "compare.md", "front.png", "front.svg", "logits.safetensors", "predictions.safetensors"),
        "report.html",
    }
    content = json.loads((folder / "compare.json").read_text())
    assert content["seed"] == 0
    assert content["budgets"] == [0.0, 0.01]
    assert content["advice"]["sentence"] == hs.advise(fronts).sentence
    assert [row["name"] for row in content["methods"]] == [row.name for row in fronts.rows]
    page = (folder / "report.html").read_text()
    assert hs.write_report(folder).read_text() == page
    assert "This was called from Python" in page
    with pytest.raises(hs.InputError, match="holds a finished comparison; give another"):
        hs.save_comparison(fronts, folder)
    other = tmp_path / "run"
    other.mkdir()
    (other / "result.json").touch()
    with pytest.raises(hs.InputError, match=r"holds result\.json, which is of no comparison; give another"):
        hs.save_comparison(fronts, other)
    assert [path.name for path in other.iterdir()] == ["result.json"]
