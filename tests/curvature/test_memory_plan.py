import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import hessian_surgery as hs
from hessian_surgery.curvature import memory_plan
from hessian_surgery.curvature.basis import Storage
from hessian_surgery.curvature.memory import Room
from hessian_surgery.curvature.memory_plan import (
    basis_bytes,
    choose_storage,
    describe_storage,
    few_rows,
    fits,
    full_rows,
)
from hessian_surgery.curvature.operators import PlainSpace

PLENTY = Room(10**12, 10**12, 10**12)
SPACE = hs.parameter_space(nn.Linear(1000, 1000, bias=False))
MB = 10**6


def test_with_plenty_of_room_everything_is_on_the_device_in_full():
    assert choose_storage(SPACE, 9, room=PLENTY) == Storage(full_rows(9), "device", "full")
    assert choose_storage(SPACE, 9, steps=10, room=PLENTY) == Storage(10, "device", "full")
    assert choose_storage(SPACE, 9, room=PLENTY, place="disk", precision="bfloat16", rows=40) == Storage(
        40, "disk", "bfloat16"
    )


@pytest.mark.parametrize(
    ("device", "host", "expected"),
    [
        (540 * MB, 0, Storage(full_rows(30), "device", "full")),
        (400 * MB, 0, Storage(few_rows(30), "device", "full")),
        (290 * MB, 0, Storage(full_rows(30), "device", "bfloat16")),
        (200 * MB, 0, Storage(few_rows(30), "device", "bfloat16")),
        (80 * MB, 540 * MB, Storage(full_rows(30), "host", "full")),
        (80 * MB, 10 * MB, Storage(full_rows(30), "disk", "full")),
    ],
)
def test_the_first_that_fits(device, host, expected):
    assert choose_storage(SPACE, 30, room=Room(device, host, 10**12)) == expected


def test_fixed_steps_that_do_not_fit_are_not_recommended():
    with pytest.raises(hs.InputError, match="set TMPDIR to a disk") as refusal:
        choose_storage(SPACE, 9, steps=200, room=Room(300 * MB, 300 * MB, 300 * MB))
    assert "would fit" not in str(refusal.value)


def test_vectors_beside_the_basis_count():
    room = Room(10**12, 300 * MB, 300 * MB)
    assert choose_storage(SPACE, 9, room=replace(room, device=300 * MB)).place == "device"
    assert choose_storage(SPACE, 9, beside=50, room=replace(room, device=300 * MB)).precision == "bfloat16"


def test_a_tight_tolerance_rules_out_half_precision():
    tight = choose_storage(SPACE, 30, tolerance=1e-4, room=Room(200 * MB, 0, 10**12))
    assert tight == Storage(full_rows(30), "disk", "full")


@given(
    device=st.integers(0, 10**9),
    host=st.integers(0, 10**9),
    disk=st.integers(0, 10**9),
    spikes=st.integers(1, 200),
    place=st.sampled_from(["auto", "device", "host", "disk"]),
)
def test_what_is_chosen_fits_and_a_refusal_names_what_would(device, host, disk, spikes, place):
    room = Room(device, host, disk)
    refusal = ""
    try:
        chosen = choose_storage(SPACE, spikes, place=place, room=room)
    except hs.InputError as error:
        refusal = str(error)
    if refusal:
        found = re.search(r"basis='(\w+)' would fit( with precision='bfloat16')?", refusal)
        assert found or "fewer spikes" in refusal
        if not found:
            return
        chosen = choose_storage(SPACE, spikes, place=found[1], precision="bfloat16" if found[2] else "full", room=room)
        place = found[1]
    assert fits(chosen, SPACE, room)
    assert place in ("auto", chosen.place)
    assert chosen.rows >= min(spikes + 3, SPACE.dimension)


def test_99_pairs_of_a_resnet50_fit_six_gigabytes():
    space = PlainSpace(23_712_932, torch.float32, torch.device("cpu"))
    assert basis_bytes(Storage(few_rows(99), "device", "bfloat16"), space) < 6e9
    assert few_rows(99) < 1.3 * 99


def test_the_description_says_how_many_how_large_and_where():
    text = describe_storage(Storage(38, "host", "bfloat16"), SPACE)
    assert text == "basis: 38 vectors of 1,000,000 weights in bfloat16, 76.0 MB in host memory"
    assert "on cpu" in describe_storage(Storage(38), SPACE)
    assert "on disk in" in describe_storage(Storage(38, "disk"), SPACE)


def test_an_operation_that_does_not_fit_says_so_before_it_starts(trained, digits_parts, quick, monkeypatch):
    from hessian_surgery.operation import problem as prepare

    monkeypatch.setattr(memory_plan, "free_room", lambda device: Room(10**7, 10**7, 10**5))
    monkeypatch.setattr(prepare, "finite_logits", lambda *_: pytest.fail("it has started"))
    parts = {"training_data": digits_parts.training, "calibration_data": digits_parts.calibration}
    with pytest.raises(hs.InputError, match=r"basis: 9 spikes need .* basis='device' would fit"):
        search = hs.SpikeSearch(basis="disk", hessian_samples=8)
        hs.diagnose(trained, **parts, config=replace(quick, search=search), spikes="auto")
