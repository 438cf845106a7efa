import numpy as np
import pytest
import scipy.linalg
import torch
from report_checks import check_report

import hessian_surgery as hs
from conftest import build, dense_hessian
from hessian_surgery.studies import stability as study
from hessian_surgery.studies.spike_agreement import agreement
from hessian_surgery.studies.stability import nested_batches, stability


def test_smaller_batches_are_part_of_larger_ones(digits_parts):
    pool = hs.hessian_batch(digits_parts.training, 128)
    small, middle, large = (batch.index.tolist() for batch in nested_batches(pool, (32, 64, 128), seed=0))
    assert set(small) < set(middle) < set(large) == set(pool.index.tolist())
    assert [len(small), len(middle), len(large)] == [32, 64, 128]
    again, other = (nested_batches(pool, (32,), seed)[0].index.tolist() for seed in (0, 1))
    assert again == small
    assert other != small


def test_digits(trained, digits_parts, tmp_path):
    before = {name: t.clone() for name, t in trained.state_dict().items()}
    seen = []
    result = stability(
        trained,
        digits_parts.training,
        sizes=(128, 32, 128),
        subspaces=(3, 6, 12),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert [size.samples for size in result.sizes] == [32, 128, 128]
    assert result.subspaces == (3, 6)
    small, same, largest = result.sizes
    assert largest.fixed.against_largest is None
    for run in (same.fixed, same.converged):
        assert run.against_largest.matched_min == pytest.approx(1)
        assert run.against_largest.at(6).largest < 1e-6
    assert small.converged.against_largest.at(6).mean > 1
    assert small.converged.against_largest.at(12) is None
    for size in result.sizes:
        assert size.fixed.products == 10 < size.converged.products
        assert size.fixed.converged < size.converged.converged == 9
        assert max(size.converged.residuals) <= result.tolerance
        assert size.fixed_against_converged.at(6).largest > size.fixed_against_converged.at(3).largest
        assert min(size.product_seconds, size.fixed.seconds, size.converged.seconds) > 0
    assert all(torch.equal(t, before[name]) for name, t in trained.state_dict().items())
    assert seen == sorted(seen)
    assert seen[-1] == (1000, 1000)
    check_report(study, result, tmp_path)


def test_against_the_dense_hessian(batch):
    net = build("conv")
    result = stability(net, batch, hs.SpikeSearch(spikes=3, tolerance=1e-9), sizes=(10,), subspaces=(3,), steps=6)
    values, vectors = torch.linalg.eigh(dense_hessian(net, *batch))
    exact = values.flip(0)[:3].tolist()
    top = vectors.flip(1)[:, :3]
    size = result.sizes[0]
    assert size.converged.eigenvalues == pytest.approx(exact)
    assert size.converged.converged == 3
    assert all(ritz <= value + 1e-12 for ritz, value in zip(size.fixed.eigenvalues, exact, strict=True))
    short = hs.lanczos(hs.Hessian(net, batch), 3, steps=6)
    angles = np.degrees(scipy.linalg.subspace_angles(short.vectors.T.numpy(), top.numpy()))
    found = size.fixed_against_converged.at(3)
    assert (found.largest, found.mean) == pytest.approx((angles.max(), angles.mean()), rel=1e-4)
    assert found.largest > 1


def test_nine_spikes_of_ten_steps_are_compared(trained, digits_parts):
    """Tables 15 to 17: k = 9 at m = 10, although not all nine Ritz values are positive."""
    result = stability(trained, digits_parts.training, hs.SpikeSearch(tolerance=0.5), sizes=(32, 64), steps=10)
    assert result.subspaces == (3, 6, 9)
    assert [len(size.fixed.eigenvalues) for size in result.sizes] == [9, 9]
    assert min(value for size in result.sizes for value in size.fixed.eigenvalues) < 0
    assert result.sizes[0].fixed.against_largest.at(9).mean > 1
    assert study.draw(result).axes[0].get_yscale() == "symlog"


def test_enough_steps_cost_nothing(batch):
    search = hs.SpikeSearch(spikes=2, tolerance=1e-10)
    result = stability(build("conv"), batch, search, sizes=(10,), subspaces=(2,), steps=30)
    assert result.sizes[0].fixed_against_converged.at(2).largest < 1e-5


def test_runs_are_compared_by_the_spikes_that_both_have(batch):
    net = build("conv")
    long, short = (hs.lanczos(hs.Hessian(net, batch), k, tolerance=1e-8) for k in (3, 2))
    found = agreement(long, short, (1, 2, 3))
    assert [angles.subspace for angles in found.angles] == [1, 2]
    assert found.diagonal_mean == pytest.approx(1)


def test_one_size_and_no_subspace_can_be_described_and_drawn(batch, tmp_path):
    result = stability(build("conv"), batch, hs.SpikeSearch(spikes=2), sizes=(10,), steps=3)
    check_report(study, result, tmp_path)


def test_bad_sizes_are_named(trained, digits_parts):
    with pytest.raises(hs.InputError, match=r"sizes: got \(\); give one or more"):
        stability(trained, digits_parts.training, sizes=())
    with pytest.raises(hs.InputError, match="sizes: got 5000, but training_data has only 248 images"):
        stability(trained, digits_parts.training, sizes=(64, 5000))
    with pytest.raises(hs.InputError, match="steps: got 0"):
        stability(trained, digits_parts.training, steps=0)
