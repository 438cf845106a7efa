import pytest
import torch

import hessian_surgery as hs
from hessian_surgery.comparison.protocol import Protocol


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"splits": 0}, "splits: got 0"),
        ({"epochs": 0}, "epochs: got 0"),
        ({"budgets": ()}, r"budgets: got \(\)"),
        ({"budgets": (-1.0,)}, "budgets: got"),
        ({"budgets": (1.0,)}, "budgets: got"),
        ({"seed": -1}, "seed: got -1"),
        ({"methods": ("magic",)}, "methods: got 'magic'"),
    ],
)
def test_a_protocol_that_cannot_be_followed_is_refused(change, message):
    with pytest.raises(hs.InputError, match=message):
        Protocol(**change)


def test_accuracy_may_be_asked_to_rise():
    assert min(Protocol().budgets) == -0.003
    protocol = Protocol(budgets=(-0.5, -0.01, 0.0))
    assert protocol.headline == 0.0
    assert protocol.operation_budgets == (0.0,)


def test_the_references_always_come_first_and_once():
    names = [entry.name for entry in Protocol(("spikes", "class-bias", "spikes")).entries]
    assert names == ["nothing", "class-bias", "spikes"]
    assert Protocol(budgets=(0.0, 0.001, 0.05)).headline == 0.001


def test_splits_are_stratified_and_their_parts_share_no_image(digits_images):
    splits = Protocol(splits=3).make_splits(digits_images)
    for split in splits:
        assert torch.cat([split.calibration, split.heldout]).sort().values.tolist() == list(range(len(digits_images)))
        counts = [torch.bincount(digits_images.labels[part]) for part in (split.calibration, split.heldout)]
        assert (counts[0] - counts[1]).abs().max() <= 1
    assert not torch.equal(splits[0].heldout, splits[1].heldout)


def test_a_final_comparison_judges_on_one_half_that_nothing_is_fitted_to(digits_images):
    protocol = Protocol(splits=4, part="final")
    splits = protocol.make_splits(digits_images)
    labels = digits_images.labels
    heldout = splits[0].heldout
    assert all(torch.equal(split.heldout, heldout) for split in splits)
    fitted = torch.cat([split.calibration for split in splits]).unique()
    assert not set(fitted.tolist()) & set(heldout.tolist())
    assert len(set(heldout.tolist())) == len(heldout)
    development = torch.tensor(sorted(set(range(len(labels))) - set(heldout.tolist())))
    whole = torch.bincount(labels[development])
    assert (whole - torch.bincount(labels[heldout])).abs().max() <= 1
    for split in splits:
        assert len(split.calibration.unique()) == len(split.calibration)
        assert (torch.bincount(labels[split.calibration]) - 0.8 * whole).abs().max() <= 0.5
    assert not torch.equal(splits[0].calibration, splits[1].calibration)
    assert torch.equal(heldout, Protocol(splits=1).make_splits(digits_images)[0].heldout)
    assert not torch.equal(heldout, Protocol(part="final", seed=1).make_splits(digits_images)[0].heldout)
