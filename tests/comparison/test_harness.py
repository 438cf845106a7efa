from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import hessian_surgery as hs
from hessian_surgery.baselines.finetune import FINETUNES
from hessian_surgery.baselines.posthoc import FROM_LOGITS
from hessian_surgery.baselines.subject import Subject
from hessian_surgery.cli.comparing import write_advised
from hessian_surgery.cli.inputs import Opened
from hessian_surgery.comparison.advice import advise
from hessian_surgery.comparison.entries import DEFAULT, Entry, parse_entry
from hessian_surgery.comparison.harness import compare, compare_logits
from hessian_surgery.comparison.protocol import Half, Protocol
from hessian_surgery.comparison.running import Trial, carry_out
from hessian_surgery.evidence.rates import rates
from hessian_surgery.paper.loop import Observer

QUICK = hs.SurgeryConfig.loop(iterations=1, hessian_samples=64)
METHODS = ("class-bias", "surgery", "surgery:3", "class-bias+surgery", "surgery+class-bias", "random", "last-layer")


@pytest.fixture
def compared(trained, digits_images, digits_parts):
    def call(*methods, splits=2, epochs=1, seed=0, model=trained, data=digits_images, **options):
        protocol = Protocol(methods, splits, budgets=(0.0, 0.01), epochs=epochs, seed=seed)
        training = digits_parts.training
        return compare(model, data=data, training_data=training, protocol=protocol, config=QUICK, **options)

    return call


def without_times(fronts):
    return [replace(row, seconds=0) for row in fronts.rows]


def test_every_name_is_an_entry():
    for name in DEFAULT:
        assert parse_entry(name) == Entry(name, "", () if name == "nothing" else (name,), "")
    for name in FINETUNES:
        assert parse_entry(name) == Entry(name, name, (), "")


@pytest.mark.parametrize(
    ("name", "trunk", "methods", "last"),
    [
        ("surgery:20", "", ("surgery:20",), ""),
        ("class-bias+surgery", "", ("class-bias", "surgery"), ""),
        ("focal+surgery:3+class-bias", "focal", ("surgery:3", "class-bias"), ""),
        ("surgery+finetune", "", ("surgery",), "finetune"),
        ("focal+surgery+finetune", "focal", ("surgery",), "finetune"),
        ("focal+finetune", "focal", (), "finetune"),
        ("focal+last-layer", "focal", ("last-layer",), ""),
        ("focal+loop", "focal", ("loop",), ""),
        ("planned+class-bias", "", ("planned", "class-bias"), ""),
        ("class-bias+planned-spikes", "", ("class-bias", "planned-spikes"), ""),
        ("focal+planned", "focal", ("planned",), ""),
        ("planned+finetune", "", ("planned",), "finetune"),
        ("nothing+class-bias", "", ("class-bias",), ""),
    ],
)
def test_chains(name, trunk, methods, last):
    assert parse_entry(name) == Entry(name, trunk, methods, last)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("surgery+focal+class-bias", "'surgery\\+focal\\+class-bias' trains in the middle"),
        ("magic", "got 'magic'; give some of nothing, temperature"),
        ("", "got ''"),
        ("focal+", "got ''"),
        ("surgery:x", "got 'surgery:x'; give a whole number"),
        ("surgery:0", "got 'surgery:0'; give a whole number"),
        ("class-bias:3", "got 'class-bias:3'"),
        ("planned:3", "got 'planned:3'"),
        ("last-layer+class-bias", "last-layer combines with trainings only, operate and loop with one before them"),
        ("loop+finetune", "last-layer combines with trainings only, operate and loop with one before them"),
        ("class-bias+loop", "last-layer combines with trainings only, operate and loop with one before them"),
    ],
)
def test_other_names_are_refused(name, message):
    with pytest.raises(hs.InputError, match=f"^methods: .*{message}"):
        parse_entry(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"splits": 0}, "splits: got 0"),
        ({"epochs": 0}, "epochs: got 0"),
        ({"budgets": ()}, r"budgets: got \(\)"),
        ({"budgets": (-0.1,)}, "budgets: got"),
        ({"budgets": (1.0,)}, "budgets: got"),
        ({"seed": -1}, "seed: got -1"),
        ({"methods": ("magic",)}, "methods: got 'magic'"),
    ],
)
def test_a_protocol_that_cannot_be_followed_is_refused(change, message):
    with pytest.raises(hs.InputError, match=message):
        Protocol(**change)


def test_the_references_always_come_first_and_once():
    names = [entry.name for entry in Protocol(("surgery", "class-bias", "surgery")).entries]
    assert names == ["nothing", "class-bias", "surgery"]
    assert Protocol(budgets=(0.0, 0.001, 0.05)).headline == 0.001


def test_halves_are_stratified_and_share_no_image(digits_images):
    halves = Protocol(splits=3).halves(digits_images)
    for half in halves:
        assert torch.cat([half.chosen, half.held]).sort().values.tolist() == list(range(len(digits_images)))
        counts = [torch.bincount(digits_images.labels[part]) for part in (half.chosen, half.held)]
        assert (counts[0] - counts[1]).abs().max() <= 1
    assert not torch.equal(halves[0].held, halves[1].held)


def test_a_final_comparison_judges_on_one_half_that_nothing_is_fitted_to(digits_images):
    protocol = Protocol(splits=4, part="final")
    halves, labels = protocol.halves(digits_images), digits_images.labels
    held = halves[0].held
    assert all(torch.equal(half.held, held) for half in halves)
    fitted = torch.cat([half.chosen for half in halves]).unique()
    assert not set(fitted.tolist()) & set(held.tolist())
    assert len(set(held.tolist())) == len(held)
    development = torch.tensor(sorted(set(range(len(labels))) - set(held.tolist())))
    whole = torch.bincount(labels[development])
    assert (whole - torch.bincount(labels[held])).abs().max() <= 1
    for half in halves:
        assert len(half.chosen.unique()) == len(half.chosen)
        assert (torch.bincount(labels[half.chosen]) - 0.8 * whole).abs().max() <= 0.5
    assert not torch.equal(halves[0].chosen, halves[1].chosen)
    assert torch.equal(held, Protocol(splits=1).halves(digits_images)[0].held)
    assert not torch.equal(held, Protocol(part="final", seed=1).halves(digits_images)[0].held)


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
        assert set(row.paired) == {"class-bias", "surgery"} - {row.name}
    nothing = fronts.row("nothing")
    assert (nothing.delta_accuracy, nothing.sigma) == (0, fronts.base["sigma"])
    assert all(fronts.row(name, 0.01).sigma < nothing.sigma for name in METHODS if name != "random")
    assert advise(fronts).method in METHODS
    assert {len(shares) for shares in fronts.bias_shares.values()} == {9, 10}
    assert fronts.predicted["surgery@0.01"].shape == (2, len(digits_images))
    again = without_times(compared("surgery", "last-layer"))
    assert again == [row for row in without_times(fronts) if row.name in {r.name for r in again}]
    assert compared("class-bias", seed=5).row("class-bias", 0.0).sigma != fronts.row("class-bias", 0.0).sigma


@pytest.mark.parametrize(
    "name", ["class-bias", "surgery", "last-layer", "vector-scaling+class-gradients", "class-bias+planned"]
)
def test_no_held_out_label_is_seen(examined, digits_images, name):
    subject, half = examined[1], Protocol().halves(digits_images)[0]
    labels = subject.labels.clone()
    labels[half.held] = labels[half.held].flip(0)
    spoiled, entry = replace(subject, labels=labels), parse_entry(name)
    one, two = (
        carry_out(entry, Trial(s, s, [half], Protocol(), Observer()), half, (0.0, 0.01)) for s in (subject, spoiled)
    )
    for budget in (0.0, 0.01):
        assert torch.equal(one[budget].logits, two[budget].logits)
        assert not torch.equal(one[budget].logits, subject.logits)


def test_no_more_accuracy_is_given_up_than_the_budget_allows():
    """Two classes of which one is rare: evening them out costs accuracy."""
    labels = (torch.arange(2000) % 5 == 0).long()
    points = labels + torch.randn(2000, generator=torch.Generator().manual_seed(0))
    logits = torch.stack([torch.zeros(2000), points - 1.9], dim=1)
    subject, chosen = Subject(("many", "few"), labels, logits), torch.arange(1000)
    budgets = (0.0, 0.02, 0.05, 0.3)
    half = Half(chosen, chosen + 1000)
    trial = Trial(subject, subject, [half], Protocol(), Observer())
    ends = carry_out(parse_entry("class-bias"), trial, half, budgets)
    base = rates(logits[chosen], labels[chosen], 2)
    found = [rates(ends[budget].logits[chosen], labels[chosen], 2) for budget in budgets]
    assert all(base.accuracy - budget - 1e-9 <= f.accuracy for budget, f in zip(budgets, found, strict=True))
    assert base.sigma >= found[0].sigma > found[1].sigma > found[2].sigma > found[3].sigma


def test_planned_steps_have_a_row_at_each_budget(compared, trained, digits_images):
    names = ("planned", "planned-spikes", "planned+class-bias", "class-bias+planned")
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
    assert fronts.row("planned", 0.01).sigma < nothing.sigma
    assert fronts.row("planned+class-bias", 0.01).sigma < nothing.sigma
    assert {"class-gradients", "spikes"} <= set(fronts.bias_shares)


def test_a_final_comparison_gives_every_split_the_same_images_to_judge(trained, digits_images, digits_parts):
    protocol = Protocol(("class-bias",), splits=3, budgets=(0.01,), part="final")
    fronts = compare(trained, data=digits_images, training_data=digits_parts.training, protocol=protocol, config=QUICK)
    assert fronts.row("nothing").sigma_spread == 0
    assert fronts.row("class-bias", 0.01).sigma_spread > 0
    assert fronts.row("class-bias", 0.01).sigma < fronts.row("nothing").sigma


def test_the_loop_leaves_the_model_as_it_was(compared, trained):
    before = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
    row = compared("loop").row("loop")
    assert (row.splits, row.budget) == (2, None)
    assert all(torch.equal(before[name], tensor) for name, tensor in trained.state_dict().items())


def test_a_class_with_a_single_image_gives_reasons_and_no_crash(compared, digits_images):
    single = (digits_images.labels == 3).nonzero()[1:, 0]
    kept = digits_images.subset(torch.tensor([i for i in range(len(digits_images)) if i not in set(single.tolist())]))
    fronts = compared("surgery", "last-layer", "loop", data=kept)
    for row in fronts.rows[1:]:
        assert row.splits == 0
        assert set(row.reasons) == {0, 1}
    reason = "calibration data: class '3' has no image; give at least 1 of each class"
    assert fronts.row("surgery", 0.0).as_dict()["reason"] == reason
    assert advise(fronts).method == "nothing"
    assert reason in advise(fronts).sentence


def test_trainings_and_chains_with_them(compared, trained, tmp_path):
    before = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
    names = ("focal", "focal+surgery", "surgery+finetune")
    fronts = compared(*names, folder=tmp_path / "out")
    assert all(torch.equal(before[name], tensor) for name, tensor in trained.state_dict().items())
    assert (fronts.row("focal").splits, fronts.row("surgery+finetune").splits) == (2, 1)
    assert all(row.reasons == {} for row in fronts.rows)
    assert fronts.row("focal+surgery", 0.01).splits == 2
    assert fronts.row("focal+surgery", 0.01).sigma != fronts.row("focal").sigma
    assert not torch.equal(fronts.predicted["focal@None"], fronts.predicted["nothing@None"])
    kept = {path.name for path in (tmp_path / "out").iterdir()}
    assert kept == {"training-focal", "training-surgery+finetune"}
    assert without_times(compared(*names, folder=tmp_path / "out")) == without_times(fronts)


def test_a_method_does_not_depend_on_the_others(compared):
    alone, beside = compared("surgery"), compared("surgery", "surgery:12")
    assert [len(f.edits["surgery"][0].coefficients.nonzero()[0]) for f in (alone, beside)] == [9, 9]


def test_what_was_fitted_to_a_trained_model_is_no_patch_of_the_original(compared, trained, digits_parts, tmp_path):
    fronts = compared("focal+class-bias")
    advice = replace(advise(fronts), method="focal+class-bias")
    said = write_advised(tmp_path, fronts, Opened(trained, digits_parts, None, {}), advice)
    assert said == "no patch: focal+class-bias is no edit of this checkpoint"
    assert not list(tmp_path.iterdir())


def test_a_model_without_a_linear_head_is_still_compared(compared, trained):
    model = nn.Sequential(trained, nn.LogSoftmax(dim=1))
    fronts = compared("surgery", "last-layer", "tau-norm", model=model)
    assert "needs a linear head" in fronts.row("last-layer", 0.0).reasons[0]
    assert "needs a linear head" in fronts.row("tau-norm", 0.0).reasons[0]
    assert fronts.row("surgery", 0.0).splits == fronts.row("class-bias", 0.0).splits == 2


def test_cached_logits_give_the_same_front(compared):
    whole = compared(*FROM_LOGITS)
    cached = compare_logits(whole.subject, Protocol(FROM_LOGITS, 2, (0.0, 0.01)))
    assert without_times(cached) == without_times(whole)
    with pytest.raises(hs.InputError, match="methods: surgery needs the model; with logits there are nothing, temp"):
        compare_logits(whole.subject, Protocol(("surgery",)))
    with pytest.raises(hs.InputError, match="focal needs the model"):
        compare_logits(whole.subject, Protocol(("focal+class-bias",)))
