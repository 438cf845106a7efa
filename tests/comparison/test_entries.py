import pytest

import hessian_surgery as hs
from hessian_surgery.baselines.finetune import FINETUNES
from hessian_surgery.baselines.posthoc import POSTHOC
from hessian_surgery.comparison.entries import DEFAULT, FAMILIES, Entry, family_of, parse_entry, wanted_count


def test_every_name_is_an_entry():
    for name in DEFAULT:
        assert parse_entry(name) == Entry(name, "", () if name == "nothing" else (name,), "")
    for name in FINETUNES:
        assert parse_entry(name) == Entry(name, name, (), "")


@pytest.mark.parametrize(
    ("name", "trunk", "methods", "last"),
    [
        ("spikes:20", "", ("spikes:20",), ""),
        ("class-bias+spikes", "", ("class-bias", "spikes"), ""),
        ("focal+spikes:3+class-bias", "focal", ("spikes:3", "class-bias"), ""),
        ("spikes+finetune", "", ("spikes",), "finetune"),
        ("focal+spikes+finetune", "focal", ("spikes",), "finetune"),
        ("focal+finetune", "focal", (), "finetune"),
        ("focal+last-layer", "focal", ("last-layer",), ""),
        ("focal+loop", "focal", ("loop",), ""),
        ("operate:both", "", ("operate:both",), ""),
        ("focal+operate:spikes", "focal", ("operate:spikes",), ""),
        ("one-step+class-bias", "", ("one-step", "class-bias"), ""),
        ("class-bias+one-step:spikes", "", ("class-bias", "one-step:spikes"), ""),
        ("focal+one-step", "focal", ("one-step",), ""),
        ("one-step+finetune", "", ("one-step",), "finetune"),
        ("nothing+class-bias", "", ("class-bias",), ""),
        ("loop+bulk", "", ("loop",), "bulk"),
        ("operate+finetune", "", ("operate",), "finetune"),
        ("focal+loop+finetune", "focal", ("loop",), "finetune"),
    ],
)
def test_chains(name, trunk, methods, last):
    assert parse_entry(name) == Entry(name, trunk, methods, last)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("spikes+focal+class-bias", "'spikes\\+focal\\+class-bias' trains in the middle"),
        ("magic", "got 'magic'; give some of nothing, temperature"),
        ("", "got ''"),
        ("focal+", "got ''"),
        ("spikes:x", "got 'spikes:x'; give a whole number"),
        ("spikes:0", "got 'spikes:0'; give a whole number"),
        ("class-bias:3", "got 'class-bias:3'"),
        ("one-step:3", "got 'one-step:3'"),
        ("last-layer+class-bias", "last-layer, operate, .*loop can only be chained with trainings"),
        ("operate:spikes+class-bias", "last-layer, operate, .*loop can only be chained with trainings"),
        ("loop+class-bias+finetune", "last-layer, operate, .*loop can only be chained with trainings"),
        ("operate:x", "got 'operate:x'"),
        ("surgery", "got 'surgery'; give some of nothing"),
        ("class-bias+loop", "last-layer, operate, .*loop can only be chained with trainings"),
    ],
)
def test_other_names_are_refused(name, message):
    with pytest.raises(hs.InputError, match=f"^methods: .*{message}"):
        parse_entry(name)


def test_a_whole_operation_is_named():
    names = ("nothing", "focal+spikes", "operate:both", "focal+loop+finetune")
    assert [parse_entry(name).whole for name in names] == ["", "", "operate:both", "loop"]


def test_short_names_of_the_chains():
    assert parse_entry("bias+spikes") == parse_entry("class-bias+spikes")
    assert parse_entry("spikes+bias").name == "spikes+class-bias"


def test_a_comparison_runs_the_default_operation_and_the_loop_by_default():
    assert (*POSTHOC, "operate") == DEFAULT


def test_the_family_and_the_number_of_directions_of_a_method():
    assert {name: family_of(name) for name in FAMILIES} == FAMILIES
    assert [family_of(name) for name in ("spikes:20", "random:4", "class-bias", "operate:spikes")] == [
        *("spikes", "random", None, None)
    ]
    assert [wanted_count(name) for name in ("spikes:20", "spikes", "one-step:spikes")] == [20, None, None]
