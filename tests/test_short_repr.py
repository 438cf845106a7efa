from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from importlib.resources import files
from inspect import isclass

import pytest
import torch
from torch import Tensor, nn

import hessian_surgery as hs
from hessian_surgery.evidence.difference import Difference
from hessian_surgery.short_repr import short_repr

# What may be long in a field: its type holds one of these words.
LONG = ("Tensor", "ndarray", "list[", "dict[", "Mapping[", ", ...]", "Module", "Parameter", "Config", "Search")


@dataclass(frozen=True)
class Record:
    """Holds a bit of everything."""

    size: int = 3
    name: str = "default"
    weights: Tensor | None = None
    rows: list[float] = field(default_factory=list)
    by_name: dict[str, float] = field(default_factory=dict)
    change: Difference | None = None
    module: nn.Module | None = None

    __repr__ = short_repr


@pytest.mark.parametrize(
    ("record", "written"),
    [
        (Record(), "Record()"),
        (Record(size=4, name="x" * 99), f"Record(size=4, name='{'x' * 59}…')"),
        (Record(weights=torch.zeros(5, 7)), "Record(weights=Tensor(5, 7))"),
        (Record(rows=[0.1, 0.25]), "Record(rows=[0.1, 0.25])"),
        (Record(rows=[0.1] * 1000), "Record(rows=<list of 1000>)"),
        (Record(by_name={"cat": 0.5}), "Record(by_name={'cat': 0.5})"),
        (Record(change=Difference(0.01, (0.0, 0.02))), "Record(change=<+1.0 pp [+0.0, +2.0]>)"),
        (Record(module=nn.Linear(2, 3)), "Record(module=Linear(…))"),
    ],
)
def test_a_repr_names_what_is_not_the_default_and_shortens_what_is_long(record, written):
    assert repr(record) == written


def test_a_record_with_many_fields_is_cut():
    held = {f"field_{i}": "a long value " * 9 for i in range(40)}
    wide = make_dataclass("Wide", held, namespace={"__repr__": short_repr})(**held)
    assert len(repr(wide)) < 500
    assert repr(wide).endswith(", …)")


def public_records():
    return [getattr(hs, name) for name in hs.__all__ if isclass(getattr(hs, name)) and is_dataclass(getattr(hs, name))]


def test_every_public_record_that_may_be_long_has_a_short_repr():
    for record in public_records():
        if any(word in str(own.type) for own in fields(record) for word in LONG) and record is not hs.OperationConfig:
            assert record.__repr__ is short_repr or "__repr__" in vars(record), record
            assert "__create_fn__" not in record.__repr__.__qualname__, record


def test_configs_show_what_was_chosen():
    assert repr(hs.SurgeryConfig()) == "SurgeryConfig()"
    config = hs.SurgeryConfig(budget=0.01, targets={"cat": 0.8}, search=hs.SpikeSearch(spikes=3))
    assert repr(config) == "SurgeryConfig(search=SpikeSearch(…), budget=0.01, targets={'cat': 0.8})"


def test_a_set_tells_its_size(digits_parts):
    assert repr(digits_parts.training).endswith(" of 10 classes)")


def test_types_are_shipped():
    assert files("hessian_surgery").joinpath("py.typed").is_file()
