"""Images that parts of the data share are named, and too many are refused."""

from dataclasses import replace

import pytest
import torch

import hessian_surgery as hs
from hessian_surgery.data.leaks import find_copies, find_leaks, hash_part, hash_training
from hessian_surgery.data.splits import join_sets

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(1000, 1, 1, 2, generator=GENERATOR)
Y = torch.arange(1000) % 3


def labelled(*rows):
    inputs = torch.cat(rows)
    return hs.as_labelled((inputs, torch.arange(len(inputs)) % 3))


def part(argument, *rows):
    return hash_part(labelled(*rows), argument)


def test_shared_images_are_named_by_their_index():
    trained, decided = part("training_data", X[:500]), part("calibration_data", X[498:800])
    judged = part("heldout_data", X[900:], X[797:798], X[3:4] + 0.0)
    found = find_leaks([trained, decided, judged], 500)
    assert [leak.sentence for leak in found] == [
        "2 images of calibration_data are in training_data as well: index 0 (there 498), 1 (there 499)",
        "1 image of heldout_data is in training_data as well: index 101 (there 3)",
        "1 image of heldout_data is in calibration_data as well: index 100 (there 299)",
    ]
    assert found[0].as_dict() == {
        "first": "training_data",
        "second": "calibration_data",
        "estimate": 2,
        "pairs": [(0, 498), (1, 499)],
    }


def test_other_values_are_other_images():
    assert find_leaks([part("a", X), part("b", X + 1e-6)], 1000) == ()
    assert find_leaks([part("a", X), part("b", X.double())], 1000) == ()


def test_a_long_list_is_cut():
    (leak,) = find_leaks([part("a", X), part("b", X[:8])], 1000)
    assert leak.named == "index 0 (there 0), 1 (there 1), 2 (there 2), …"


def test_more_than_one_percent_is_refused_and_one_percent_is_not():
    parts = [part("calibration_data", X[:500]), part("heldout_data", X[495:])]
    assert len(find_leaks(parts, 500)[0].pairs) == 5
    parts[0] = part("calibration_data", X[:501])
    message = (
        r"^heldout_data: 6 images are in calibration_data as well: index 0 \(there 495\), 1 \(there 496\), "
        r"2 \(there 497\), …; that is more than 1 % of the 500 images to decide or judge with, so leave them "
        r"out of one of the two; in Python, hs.drop_shared does that$"
    )
    with pytest.raises(hs.InputError, match=message):
        find_leaks(parts, 500)


def test_a_sample_of_the_training_images_is_scaled_up():
    training = replace(labelled(X), in_memory=False)
    sample = hash_training(training, [training.subset(torch.arange(100)), training.subset(torch.arange(50, 200))])
    assert (len(sample.hashes), sample.total) == (200, 1000)
    (leak,) = find_leaks([sample, part("heldout_data", X[198:300])], 100)
    assert leak.estimate == 10
    assert leak.sentence == (
        "2 images of heldout_data are among the 200 of 1,000 images of training_data that were compared, "
        "so about 10 in all: index 0 (there 198), 1 (there 199)"
    )
    with pytest.raises(hs.InputError, match=r"heldout_data: 3 images are among the 200 .* about 15 in all"):
        find_leaks([sample, part("heldout_data", X[197:300])], 100)
    assert find_leaks([sample, part("heldout_data", X[197:300])], 1500)


def test_training_images_in_memory_are_all_compared_and_others_never_read():
    assert len(hash_training(labelled(X), []).hashes) == 1000

    def unread(positions):
        raise AssertionError("images were read")

    training = replace(labelled(X), fetch=unread, in_memory=False)
    assert hash_training(training, []).hashes == []
    assert find_leaks([hash_training(training, []), part("heldout_data", X)], 10) == ()


def test_copies_know_their_original():
    firsts, copies = find_copies(part("data", X[:4], X[1:2], X[5:6], X[1:2]))
    assert firsts == [0, 1, 2, 3, 1, 5, 1]
    assert copies.sentence == "2 images of data are copies of others there: index 4 (there 1), 6 (there 1)"
    assert find_copies(part("data", X)) == (list(range(1000)), None)


def test_inputs_of_several_tensors_differ_if_one_does():
    def pair(first, second):
        return hash_part(hs.as_labelled(((first, second), Y[:4])), "data")

    assert pair(X[:4], X[4:8]).hashes == pair(X[:4], X[4:8]).hashes
    assert not set(pair(X[:4], X[4:8]).hashes) & set(pair(X[:4], X[8:12]).hashes)


def test_in_memory_is_known(digits_parts):
    assert digits_parts.training.in_memory
    assert digits_parts.training.subset(torch.arange(3)).in_memory
    listed = hs.as_labelled([(X[i], int(Y[i])) for i in range(5)])
    assert not listed.in_memory
    assert listed.resident().in_memory


def test_joined_sets_may_not_share_images():
    with pytest.raises(hs.InputError, match=r"^heldout_data: 12 images are in calibration_data as well"):
        join_sets(labelled(X[:12]), labelled(X[:12]))


def test_the_digits_share_none(digits_parts):
    parts = [
        hash_part(digits_parts.training, "training_data"),
        hash_part(digits_parts.calibration, "calibration_data"),
        hash_part(digits_parts.heldout, "heldout_data"),
    ]
    assert find_leaks(parts, 540) == ()
    assert all(find_copies(each)[1] is None for each in parts)


def test_shared_samples_and_copies_are_dropped():
    data = labelled(torch.cat([X[:50], X[:10], X[90:120]]))
    rest = hs.drop_shared(data, labelled(X[40:45]), (X[100:200], torch.zeros(100, dtype=torch.int64)))
    assert rest.index.tolist() == [*range(40), *range(45, 50), *range(60, 70)]
    assert find_leaks([part("a", X[40:45]), hash_part(rest, "b")], 1000) == ()
    with pytest.raises(hs.InputError, match="all 50 samples are in the other sets"):
        hs.drop_shared(labelled(X[:50]), labelled(X))
