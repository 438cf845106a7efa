import json
from dataclasses import asdict, replace

import pytest
import torch

import hessian_surgery as hs
from hessian_surgery.comparison import whole_operations
from hessian_surgery.comparison.compare import compare, open_compared
from hessian_surgery.comparison.kept_splits import DoneSplit, KeptSplits, find_kept, forget_splits
from hessian_surgery.comparison.protocol import Protocol
from hessian_surgery.errors import FileError
from hessian_surgery.model.passes import Passes
from hessian_surgery.weights.tensorfile import read_checked, save_checked

PASSES = Passes(64, True)
REFUSED = r"splits-operate.* other options, weights, images or labels"


class Killed(BaseException):
    """Ends a comparison; what pytest does not expect fails the test, and does not end all tests."""


class Told(hs.Observer):
    """Keeps the stages, the shares of the operation, and the seconds that are expected."""

    def __init__(self):
        self.stages = []
        self.shares = []
        self.seconds = {}

    def expect(self, stages, in_seconds=True):
        self.seconds = {stage.name: stage.seconds for stage in stages()}

    def stage(self, name, done, total):
        self.stages.append(name)
        if name == "operate":
            self.shares.append(done / total)


@pytest.fixture
def compared(trained, digits_images, digits_parts):
    def call(folder=None, splits=3, budgets=(0.0, 0.01), training=digits_parts.training, **options):
        protocol = Protocol(("operate",), splits, budgets)
        return compare(trained, data=digits_images, training_data=training, protocol=protocol, folder=folder, **options)

    return call


@pytest.fixture
def ends_after(monkeypatch):
    """Operations are counted; after so many the comparison is killed."""
    find_steps = whole_operations._find_steps

    def arm(most):
        calls = []

        def counted(*arguments):
            if len(calls) == most:
                raise Killed
            calls.append(arguments)
            return find_steps(*arguments)

        monkeypatch.setattr(whole_operations, "_find_steps", counted)
        return calls

    return arm


def test_a_comparison_goes_on_after_its_last_split(compared, ends_after, tmp_path):
    whole = compared()
    ends_after(1)
    with pytest.raises(Killed):
        compared(tmp_path, splits=2)
    assert [path.name for path in tmp_path.iterdir()] == ["splits-operate.safetensors"]
    calls = ends_after(9)
    fronts = compared(tmp_path)
    assert len(calls) == 2
    assert fronts.predicted.keys() == whole.predicted.keys()
    assert all(torch.equal(fronts.predicted[name], found) for name, found in whole.predicted.items())
    ends_after(0)
    told = Told()
    again = compared(tmp_path, observer=told)
    assert torch.equal(again.predicted["operate@0.0"], whole.predicted["operate@0.0"])
    assert told.seconds["operate"] == 0 < told.seconds["class-bias"]


def test_time_is_told_of_the_splits_that_are_left(compared, ends_after, tmp_path):
    ends_after(1)
    with pytest.raises(Killed):
        compared(tmp_path)
    ends_after(9)
    told = Told()
    compared(tmp_path, observer=told)
    assert told.shares == [0, 0.5, 1]


@pytest.mark.parametrize(
    "other", [{"budgets": (0.0, 0.02)}, {"config": hs.SurgeryConfig(target="worst")}], ids=["budgets", "target"]
)
def test_another_comparison_is_refused(compared, ends_after, tmp_path, other):
    ends_after(1)
    with pytest.raises(Killed):
        compared(tmp_path)
    told = Told()
    with pytest.raises(FileError, match=REFUSED):
        compared(tmp_path, observer=told, **other)
    assert (told.seconds, told.stages) == ({}, [])


def test_other_training_images_are_refused(compared, ends_after, digits_parts, tmp_path):
    ends_after(1)
    with pytest.raises(Killed):
        compared(tmp_path)
    training = digits_parts.training
    brighter = replace(training, fetch=lambda chosen: training.fetch(chosen) + 0.01)
    with pytest.raises(FileError, match=REFUSED):
        compared(tmp_path, training=brighter)


@pytest.fixture
def find(trained, digits_images, digits_parts, tmp_path):
    """Where splits are kept in a folder."""

    def call(*methods, config=None, **options):
        model = open_compared(trained, digits_images, digits_parts.training, config or hs.SurgeryConfig())
        return find_kept(tmp_path, model, Protocol(methods, **options), [b"one"], [b"other"])

    return call


def test_only_whole_operations_that_end_without_a_training_are_kept(find):
    assert find("spikes", "operate", "focal+loop", "operate+finetune").keys() == {"operate", "focal+loop"}


@pytest.mark.parametrize(
    ("name", "change", "alike"),
    [
        ("operate", {"budgets": (0.0, 0.01)}, False),
        ("operate", {"budgets": (-0.01, 0.0)}, True),
        ("loop", {"budgets": (0.0, 0.01)}, True),
        ("operate", {"splits": 9}, True),
        ("operate", {"seed": 1}, False),
        ("operate", {"part": "final"}, False),
        ("operate", {"config": hs.SurgeryConfig(target="worst")}, False),
        ("loop", {"config": hs.SurgeryConfig(protect=("3",))}, True),
        ("operate", {"epochs": 3}, True),
        ("focal+operate", {"epochs": 3}, False),
    ],
)
def test_an_entry_depends_on_what_it_uses(find, name, change, alike):
    one, other = (find(name, **({"budgets": (0.0,)} | some))[name].identity for some in ({}, change))
    assert (one == other) == alike


def test_what_is_kept_comes_back(tmp_path):
    kept = KeptSplits(tmp_path / "splits-operate.safetensors", "this one", (0.0, 0.01), passes=PASSES)
    assert kept.read(9) is kept
    done = [
        DoneSplit({0.0: torch.tensor([0, 2, 1]), 0.01: "no step"}, 1.5),
        DoneSplit({0.0: "nothing to do", 0.01: "no step"}, 0.5),
    ]
    kept.save(done)
    found = replace(kept, passes=None).read(9)
    assert found.passes == PASSES
    assert [split.seconds for split in found.done] == [1.5, 0.5]
    assert found.done[0].predicted[0.0].tolist() == [0, 2, 1]
    assert (found.done[0].predicted[0.01], found.done[1].predicted[0.0]) == ("no step", "nothing to do")
    assert len(kept.read(1).done) == 1
    with pytest.raises(FileError, match=REFUSED):
        replace(kept, identity="another").read(9)


def test_passes_are_those_of_the_killed_comparison(compared, ends_after, tmp_path):
    ends_after(1)
    with pytest.raises(Killed):
        compared(tmp_path)
    (path,) = tmp_path.iterdir()
    chosen = _passes_in(path, Passes(96))
    ends_after(9)
    compared(tmp_path)
    assert _passes_in(path) == Passes(96) != chosen


def test_all_that_is_kept_of_a_finished_comparison_is_forgotten(tmp_path):
    for name in ("splits-operate.safetensors", "splits-focal+loop.safetensors", "splits-of-mine.txt", "other"):
        (tmp_path / name).touch()
    forget_splits(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"splits-of-mine.txt", "other"}


def _passes_in(path, others=None):
    """The passes that a file names; `others` are then written instead of them."""
    tensors, metadata = read_checked(path)
    del metadata["format"]  # which every file has
    if others is not None:
        save_checked(path, tensors, metadata | {"passes": json.dumps(asdict(others))})
    return Passes(**json.loads(metadata["passes"]))
