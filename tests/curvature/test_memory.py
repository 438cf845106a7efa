import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import hessian_surgery as hs
from hessian_surgery.curvature import memory
from hessian_surgery.curvature.basis import Storage
from hessian_surgery.curvature.memory import (
    Room,
    Watch,
    basis_bytes,
    check_graph,
    choose_storage,
    describe_storage,
    few_rows,
    fits,
    free_room,
    full_rows,
)

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


def test_only_what_the_chosen_weights_need_is_counted():
    net = nn.Sequential(nn.Linear(8, 1000), nn.Tanh(), nn.Linear(1000, 4))
    data = hs.as_labelled((torch.randn(3, 8), torch.arange(3)), classes=list("abcd"))
    classifier = hs.Classifier(net)
    last = hs.parameter_space(net, "2.*")
    assert memory.saved_bytes(classifier, data, last) < memory.saved_bytes(classifier, data)
    assert all(p.requires_grad for p in net.parameters())


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
    room, refusal = Room(device, host, disk), ""
    try:
        chosen = choose_storage(SPACE, spikes, place=place, room=room)
    except hs.InputError as error:
        refusal = str(error)
    if refusal:
        found = re.search(r"--basis (\w+) would fit( with --precision bfloat16)?", refusal)
        assert found or "fewer spikes" in refusal
        if not found:
            return
        chosen = choose_storage(SPACE, spikes, place=found[1], precision="bfloat16" if found[2] else "full", room=room)
        place = found[1]
    assert fits(chosen, SPACE, room)
    assert place in ("auto", chosen.place)
    assert chosen.rows >= min(spikes + 3, SPACE.dimension)


def test_99_pairs_of_a_resnet50_fit_six_gigabytes():
    space = replace(SPACE, parameters=(nn.Parameter(torch.empty(23_712_932, device="meta")),))
    assert basis_bytes(Storage(few_rows(99), "device", "bfloat16"), space) < 6e9
    assert few_rows(99) < 1.3 * 99


def test_the_description_says_how_many_how_large_and_where():
    text = describe_storage(Storage(38, "host", "bfloat16"), SPACE)
    assert text == "basis: 38 vectors of 1,000,000 weights in bfloat16, 76.0 MB in host memory"
    assert "on cpu" in describe_storage(Storage(38), SPACE)
    assert "on disk in" in describe_storage(Storage(38, "disk"), SPACE)


def test_a_batch_whose_graph_does_not_fit_is_refused_with_the_micro_batch_that_would():
    net = nn.Sequential(nn.Linear(8, 1000), nn.Tanh(), nn.Linear(1000, 4))
    data = hs.as_labelled((torch.randn(300, 8), torch.arange(300) % 4))
    classifier = hs.Classifier(net)
    room = Room(MB, MB, MB)
    with pytest.raises(hs.InputError, match="hessian_samples: the graph of 300 images takes about") as refusal:
        check_graph(classifier, data, 300, room)
    fitting = int(re.search(r"--micro-batch (\d+)", str(refusal.value))[1])
    assert 0 < check_graph(classifier, data, fitting, room) <= MB
    with pytest.raises(hs.InputError, match="not even one image"):
        check_graph(classifier, data, 300, Room(100, 100, 100))


def test_an_operation_that_does_not_fit_says_so_before_it_starts(trained, digits_parts, quick, monkeypatch):
    from hessian_surgery.operation import problem as prepare

    monkeypatch.setattr(memory, "free_room", lambda device: Room(10**7, 10**7, 10**5))
    monkeypatch.setattr(prepare, "answer", lambda *_: pytest.fail("it has started"))
    parts = {"training_data": digits_parts.training, "calibration_data": digits_parts.calibration}
    with pytest.raises(hs.InputError, match=r"basis: 9 spikes need .* --basis device would fit"):
        hs.diagnose(trained, **parts, config=replace(quick, search=hs.SpikeSearch(basis="disk", hessian_samples=8)))


def test_the_watch_sees_what_is_held():
    watch = Watch(torch.device("cpu"))
    held = torch.ones(50 * MB // 4)
    assert watch.peak() == pytest.approx(held.nbytes, rel=0.3)


def test_free_room_is_what_the_machine_has(monkeypatch):
    room = free_room(torch.device("cpu"))
    assert room.device == room.host > 10**8
    assert room.disk > 10**6
    monkeypatch.setattr(memory.Path, "read_text", lambda *_: (_ for _ in ()).throw(FileNotFoundError()))
    assert free_room(torch.device("cpu")).host > 10**8
