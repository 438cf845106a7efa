import pytest
import torch

import hessian_surgery as hs
from hessian_surgery.comparison import whole_operations
from hessian_surgery.comparison.compare import compare
from hessian_surgery.comparison.kept_splits import DoneSplit, KeptSplits, forget_splits, kept_passes
from hessian_surgery.comparison.protocol import Protocol
from hessian_surgery.errors import FileError
from hessian_surgery.model.passes import Passes

PASSES = Passes(64, True)


@pytest.fixture
def compared(trained, digits_images, digits_parts):
    def call(folder=None, splits=3, budgets=(0.0, 0.01), **options):
        protocol = Protocol(("operate",), splits, budgets)
        training = digits_parts.training
        return compare(trained, data=digits_images, training_data=training, protocol=protocol, folder=folder, **options)

    return call


@pytest.fixture
def ends_after(monkeypatch):
    """Operations are counted; after so many the command is interrupted."""
    find_steps = whole_operations._find_steps

    def arm(most):
        calls = []

        def counted(*arguments):
            if len(calls) == most:
                raise KeyboardInterrupt
            calls.append(arguments)
            return find_steps(*arguments)

        monkeypatch.setattr(whole_operations, "_find_steps", counted)
        return calls

    return arm


def test_a_comparison_goes_on_after_its_last_split(compared, ends_after, tmp_path):
    whole = compared()
    ends_after(1)
    with pytest.raises(KeyboardInterrupt):
        compared(tmp_path, splits=2)
    assert [path.name for path in tmp_path.iterdir()] == ["splits-operate.safetensors"]
    calls = ends_after(9)
    fronts = compared(tmp_path)
    assert len(calls) == 2
    assert fronts.predicted.keys() == whole.predicted.keys()
    assert all(torch.equal(fronts.predicted[name], found) for name, found in whole.predicted.items())
    assert len(ends_after(0)) == 0
    assert torch.equal(compared(tmp_path).predicted["operate@0.0"], whole.predicted["operate@0.0"])
    forget_splits(tmp_path, ["operate"])
    assert not list(tmp_path.iterdir())


def test_time_is_told_of_the_splits_that_are_left(compared, ends_after, tmp_path):
    class Told(hs.Observer):
        def __init__(self):
            self.shares = []

        def stage(self, name, done, total):
            if name == "operate":
                self.shares.append(done / total)

    ends_after(1)
    with pytest.raises(KeyboardInterrupt):
        compared(tmp_path)
    ends_after(9)
    told = Told()
    compared(tmp_path, observer=told)
    assert told.shares == [0, 0.5, 1, 1]


@pytest.mark.parametrize(
    "other", [{"budgets": (0.0, 0.02)}, {"config": hs.SurgeryConfig(target="worst")}], ids=["budgets", "target"]
)
def test_another_comparison_is_refused(compared, ends_after, tmp_path, other):
    ends_after(1)
    with pytest.raises(KeyboardInterrupt):
        compared(tmp_path)
    with pytest.raises(FileError, match=r"splits-operate.* other options, weights, images or labels"):
        compared(tmp_path, **other)


def test_what_is_kept_comes_back(tmp_path):
    kept = KeptSplits(tmp_path / "splits-operate.safetensors", "this one", PASSES)
    assert kept.load((0.0, 0.01)) == []
    done = [
        DoneSplit({0.0: torch.tensor([0, 2, 1]), 0.01: "no step"}, 1.5),
        DoneSplit({0.0: "nothing to do", 0.01: "no step"}, 0.5),
    ]
    kept.save(done)
    found = kept.load((0.0, 0.01))
    assert [split.seconds for split in found] == [1.5, 0.5]
    assert found[0].predicted[0.0].tolist() == [0, 2, 1]
    assert (found[0].predicted[0.01], found[1].predicted[0.0]) == ("no step", "nothing to do")


def test_passes_are_those_of_the_killed_comparison(tmp_path):
    assert kept_passes(None, ["operate"]) is None
    assert kept_passes(tmp_path, ["operate"]) is None
    kept = KeptSplits(tmp_path / "splits-operate.safetensors", "this one", PASSES)
    kept.save([DoneSplit({None: torch.tensor([0])}, 1.0)])
    assert kept_passes(tmp_path, ["nothing", "operate"]) == PASSES
    assert kept_passes(tmp_path, ["loop"]) is None
    forget_splits(tmp_path, ["loop"])
    assert kept.path.exists()
