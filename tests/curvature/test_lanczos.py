import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import hessian_surgery as hs
from conftest import dense_hessian
from hessian_surgery.seeding import generator


def symmetric(eigenvalues, seed=0, dtype=torch.float64):
    """A dense matrix with these eigenvalues and random eigenvectors."""
    draw = torch.Generator().manual_seed(seed)
    n = len(eigenvalues)
    q, _ = torch.linalg.qr(torch.randn(n, n, generator=draw, dtype=torch.float64))
    return (q * torch.tensor(eigenvalues, dtype=torch.float64) @ q.T).to(dtype)


def test_spikes_match_dense_eigenpairs(net, batch):
    matrix = dense_hessian(net, *batch)
    values, vectors = torch.linalg.eigh(matrix)
    spectrum = hs.lanczos(hs.Hessian(net, batch), 3, tolerance=1e-9)
    assert spectrum.converged.all()
    assert np.allclose(spectrum.eigenvalues, values.flip(0)[:3].numpy(), rtol=1e-8)
    for value, vector in zip(spectrum.eigenvalues, spectrum.vectors, strict=True):
        near = vectors[:, (values - value).abs() < 1e-6]
        assert torch.linalg.norm(near.T @ vector) == pytest.approx(1, abs=1e-7)


@settings(deadline=None)
@given(
    seed=st.integers(0, 10**6),
    spikes=st.lists(st.floats(5, 500), min_size=1, max_size=6),
    bulk=st.lists(st.floats(-1, 1), min_size=20, max_size=60),
    steps=st.integers(6, 18),
)
def test_residuals_are_the_true_ones(seed, spikes, bulk, steps):
    operator = symmetric(spikes + bulk, seed)
    spectrum = hs.lanczos(operator, len(spikes), steps=steps, seed=seed)
    assert spectrum.steps == steps
    products = spectrum.vectors @ operator
    values = torch.from_numpy(spectrum.eigenvalues)
    true = (products - values[:, None] * spectrum.vectors).norm(dim=1)
    assert np.allclose(spectrum.residuals * spectrum.eigenvalues, true.numpy(), atol=1e-9)
    gram = spectrum.vectors @ spectrum.vectors.T
    assert torch.allclose(gram, torch.eye(len(spectrum), dtype=torch.float64), atol=1e-10)
    # Ritz values lie below the eigenvalues that they approximate.
    exact = np.sort(np.array(spikes + bulk))[::-1][: len(spectrum)]
    assert (spectrum.eigenvalues <= exact + 1e-8 * exact[0]).all()


def test_float32_keeps_the_basis_orthogonal():
    operator = symmetric([1000.0, 300.0, 100.0] + [0.01 * i for i in range(200)], dtype=torch.float32)
    spectrum = hs.lanczos(operator, 3, steps=60)
    assert np.allclose(spectrum.eigenvalues, [1000, 300, 100], rtol=1e-5)
    assert torch.allclose(spectrum.vectors @ spectrum.vectors.T, torch.eye(3), atol=1e-5)


def test_fixed_steps_say_which_spikes_have_not_converged():
    spectrum = hs.lanczos(symmetric([100.0, 50.0, 25.0, 12.0, 6.0] + [1.0 / i for i in range(1, 60)]), 5, steps=6)
    assert spectrum.converged[0]
    assert not spectrum.converged[-1]


def test_convergence_stops_before_the_limit():
    spectrum = hs.lanczos(symmetric([100.0, 50.0] + [0.0] * 5 + [0.1, 0.2] * 50), 2, tolerance=1e-6, max_steps=80)
    assert spectrum.converged.all()
    assert spectrum.steps < 20


def test_repeated_eigenvalues_are_found_after_breakdown():
    """One start vector sees one direction of a repeated eigenvalue; a fresh one sees the next."""
    spectrum = hs.lanczos(symmetric([7.0, 7.0, 7.0, 2.0, 2.0, 0.0, 0.0, 0.0]), 5, steps=8)
    assert np.allclose(spectrum.eigenvalues, [7, 7, 7, 2, 2])
    assert (spectrum.residuals < 1e-9).all()


def test_a_small_bulk_is_not_taken_for_the_end_in_float32():
    """Spikes at 600 … 20 over a bulk near 0.02, as in the paper; the residuals must be true."""
    values = [600.0, 120.0, 20.0] + [0.02 * (1 - i / 400) for i in range(200)]
    operator = symmetric(values, dtype=torch.float32)
    spectrum = hs.lanczos(operator, 9, max_steps=40)
    products = spectrum.vectors @ operator
    true = (products - torch.tensor(spectrum.eigenvalues).float()[:, None] * spectrum.vectors).norm(dim=1)
    assert spectrum.steps == 40
    assert not spectrum.converged[8]
    assert np.allclose(spectrum.residuals * spectrum.eigenvalues, true.numpy(), atol=1e-3)


@pytest.mark.parametrize("zeros", [4, 100])
def test_convergence_is_not_declared_on_a_breakdown(zeros):
    spectrum = hs.lanczos(symmetric([7.0, 7.0, 2.0] + [0.0] * zeros), 2, max_steps=40)
    assert np.allclose(spectrum.eigenvalues, [7, 7])


def test_the_whole_space_and_no_further():
    spectrum = hs.lanczos(symmetric([3.0, 2.0, -1.0]), 3, steps=50)
    assert spectrum.steps == 3
    assert np.allclose(spectrum.eigenvalues, [3, 2])


def test_only_positive_eigenvalues_are_spikes():
    assert len(hs.lanczos(symmetric([-1.0, -2.0, -3.0]), 2, steps=3)) == 0
    assert len(hs.lanczos(torch.zeros(4, 4, dtype=torch.float64), 2)) == 0


def test_all_signs_give_every_pair_of_the_projected_matrix(net, batch):
    """m steps from one start vector: T = Q H Qᵀ has m Ritz values, some of them not positive."""
    matrix = dense_hessian(net, *batch)
    m = 10
    start = torch.randn(len(matrix), generator=generator(3, "start"), dtype=torch.float64)
    krylov = torch.stack([torch.linalg.matrix_power(matrix / matrix.norm(), i) @ start for i in range(m)])
    basis = torch.linalg.qr(krylov.T).Q
    exact, rows = torch.linalg.eigh(basis.T @ matrix @ basis)
    found = hs.lanczos(matrix, m, steps=m, start=start, signs="all")
    assert found.eigenvalues == pytest.approx(exact.flip(0).numpy(), rel=1e-6, abs=1e-8)
    assert (found.eigenvalues < 0).any()
    pairs = (basis @ rows.flip(1)).T
    assert (found.vectors * pairs).sum(dim=1).abs().numpy() == pytest.approx(np.ones(m), abs=1e-5)
    values = torch.from_numpy(found.eigenvalues)
    true = (found.vectors @ matrix - values[:, None] * found.vectors).norm(dim=1) / values.abs()
    assert found.residuals == pytest.approx(true.numpy(), rel=1e-6, abs=1e-9)
    spikes = hs.lanczos(matrix, m, steps=m, start=start)
    assert spikes.eigenvalues.tolist() == [value for value in found.eigenvalues if value > 0]
    with pytest.raises(hs.InputError, match="signs: got 'both'; it must be positive or all"):
        hs.lanczos(matrix, 2, signs="both")


def test_too_many_spikes_are_refused():
    with pytest.raises(hs.InputError, match="spikes: got 9, but there are only 5 Lanczos steps"):
        hs.lanczos(symmetric([1.0] * 20), 9, steps=5)
    with pytest.raises(hs.InputError, match="only 3 weights"):
        hs.lanczos(symmetric([1.0] * 3), 4)


def test_a_product_that_is_not_finite_is_named():
    with pytest.raises(hs.InputError, match="not finite"):
        hs.lanczos(torch.full((3, 3), float("nan")), 1)


def test_same_seed_same_spectrum_and_own_start():
    operator = symmetric([9.0, 4.0] + [0.1] * 30)
    first, second = (hs.lanczos(operator, 2, steps=3, seed=5) for _ in range(2))
    assert torch.equal(first.vectors, second.vectors)
    other = hs.lanczos(operator, 2, steps=3, seed=5, iteration=1)
    assert not torch.equal(first.vectors, other.vectors)
    own = hs.lanczos(operator, 1, steps=1, start=torch.eye(32, dtype=torch.float64)[0])
    assert own.eigenvalues[0] == pytest.approx(float(operator[0, 0]))


def test_progress_counts_the_steps():
    seen = []
    hs.lanczos(symmetric([9.0, 4.0, 1.0]), 1, steps=3, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


# Apart by more than the tolerance: one start vector may see only one of two closer spikes.
SPECTRUM = st.lists(st.floats(1.2, 2), min_size=2, max_size=8).map(lambda ratios: (5 * np.cumprod(ratios)).tolist())
BULK = st.lists(st.floats(-1, 1), min_size=40, max_size=80).map(lambda values: values * 4)
KEPT = [(place, precision) for place in ("device", "disk") for precision in ("full", "bfloat16")]


@pytest.mark.parametrize(("place", "precision"), KEPT)
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10**6), spikes=SPECTRUM, bulk=BULK, spare=st.integers(12, 20))
def test_restarted_and_offloaded_lanczos_finds_the_dense_spikes(place, precision, seed, spikes, bulk, spare):
    """There is little room, so it restarts. The truth comes from dense algebra.

    Rounding a vector to bfloat16 costs about 0.2 % of the largest eigenvalue: a spike of a tenth of
    that size may not reach a residual of 0.02.
    """
    assume(precision == "full" or max(spikes) < 6 * min(spikes))
    operator = symmetric(spikes + bulk, seed, torch.float32)
    k = len(spikes)
    storage = hs.Storage(min(k + spare, k + len(bulk)), place, precision)
    spectrum = hs.lanczos(operator, k, tolerance=0.02, max_steps=600, storage=storage, seed=seed)
    assert spectrum.converged.all()
    assert spectrum.basis_bytes == storage.rows * (k + len(bulk)) * (4 if precision == "full" else 2)
    exact = np.sort(np.array(spikes))[::-1]
    assert np.allclose(spectrum.eigenvalues, exact, rtol=0.01)
    vectors = torch.stack([spectrum.vector(i) for i in range(k)])
    assert torch.allclose(vectors @ vectors.T, torch.eye(k), atol=1e-4 if precision == "full" else 0.02)
    true = (vectors @ operator - torch.tensor(spectrum.eigenvalues).float()[:, None] * vectors).norm(dim=1)
    # With so few weights, rounding errors are not quite unrelated.
    assert (true.numpy() / exact <= 3 * spectrum.residuals + 1e-4).all()


def test_a_restart_costs_few_products():
    values = [440 * i**-0.95 for i in range(1, 600)]
    operator = symmetric(values)
    roomy, tight = (hs.lanczos(operator, 40, storage=hs.Storage(rows)) for rows in (450, 52))
    assert roomy.converged.all()
    assert tight.converged.all()
    assert tight.steps <= 1.1 * roomy.steps
    assert np.allclose(tight.eigenvalues, roomy.eigenvalues, rtol=0.01)


def test_half_precision_counts_its_rounding():
    """If bfloat16 cannot reach the tolerance, no spike counts as converged."""
    operator = symmetric([100.0, 50.0, 25.0] + [0.01 * i for i in range(500)], dtype=torch.float32)
    spectrum = hs.lanczos(operator, 3, tolerance=1e-5, max_steps=60, storage=hs.Storage(20, precision="bfloat16"))
    assert not spectrum.converged.any()
    vectors = torch.stack([spectrum.vector(i) for i in range(3)])
    products = vectors @ operator
    true = (products - torch.tensor(spectrum.eigenvalues).float()[:, None] * vectors).norm(dim=1).numpy()
    assert np.allclose(true / spectrum.eigenvalues, spectrum.residuals, rtol=0.5)
    assert (spectrum.residuals < 0.005).all()


def test_a_storage_without_room_is_refused():
    with pytest.raises(hs.InputError, match="storage: got room for 5 vectors; give room for 9 or more"):
        hs.lanczos(symmetric([1.0] * 30), 6, storage=hs.Storage(5))


def test_combining_spikes_and_the_memory_report():
    spectrum = hs.lanczos(symmetric([9.0, 4.0] + [0.1] * 30), 2, storage=hs.Storage(12, "disk", "bfloat16"))
    step = spectrum.combine(np.array([2.0, -1.0]))
    assert torch.allclose(step, 2 * spectrum.vector(0) - spectrum.vector(1))
    assert step.dtype == torch.float64
    assert spectrum.basis_bytes == 12 * 32 * 2
    assert spectrum.peak_bytes >= 0


def test_a_plain_function_and_a_start_vector_are_enough():
    matrix = symmetric([9.0, 4.0, 2.0] + [0.1] * 30)
    start = torch.randn(33, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plain = hs.lanczos(lambda vector: matrix @ vector, 3, tolerance=1e-9, start=start)
    dense = hs.lanczos(matrix, 3, tolerance=1e-9, start=start)
    assert np.allclose(plain.eigenvalues, [9, 4, 2], rtol=1e-8)
    assert torch.equal(plain.vectors, dense.vectors)
    assert (plain.space.dimension, plain.space.dtype, plain.space.device) == (33, torch.float64, matrix.device)
    assert torch.equal(plain.combine(np.array([0.0, 1.0, 0.0])), plain.vector(1))


def test_a_function_may_return_a_tensor_of_its_own():
    """Products are changed in place; the tensor that the function returned is not."""
    same = hs.lanczos(lambda vector: vector, 1, steps=1, start=torch.ones(5))
    assert same.eigenvalues[0] == pytest.approx(1)
    assert torch.allclose(same.vectors[0], torch.full((5,), 5**-0.5))
    kept = torch.zeros(5)
    hs.lanczos(lambda vector: kept, 1, steps=2, start=torch.ones(5))
    assert not kept.any()


def test_a_model_gives_its_weights_and_a_matrix_has_none(net, batch):
    space = hs.parameter_space(net)
    operator = hs.Deflated(hs.Hessian(net, batch, space), torch.eye(1, space.dimension, dtype=torch.float64))
    assert hs.lanczos(operator, 1, steps=2).weights is space
    with pytest.raises(hs.InputError, match="spectrum: it belongs to no model's weights"):
        hs.lanczos(symmetric([2.0, 1.0]), 1).weights.snapshot()


def test_bad_operators_and_start_vectors_are_named():
    with pytest.raises(hs.InputError, match="start: got None; give a vector"):
        hs.lanczos(lambda vector: vector, 1)
    with pytest.raises(hs.InputError, match=r"operator: got shape \(3, 4\); it must be \(p, p\)"):
        hs.lanczos(torch.zeros(3, 4), 1)
    with pytest.raises(hs.InputError, match=r"start: got shape \(4,\); it must be \(3,\)"):
        hs.lanczos(torch.eye(3), 1, start=torch.ones(4))


def test_the_default_start_vector_is_drawn_on_the_cpu_in_the_dtype_of_the_operator():
    """It fixes the results of every seed, so it must not change."""
    matrix = symmetric([9.0, 4.0] + [0.01 * i for i in range(30)], dtype=torch.float32)
    start = torch.randn(32, generator=generator(5, "lanczos", 2), dtype=torch.float32)
    drawn = hs.lanczos(matrix, 2, steps=4, seed=5, iteration=2)
    assert torch.equal(drawn.vectors, hs.lanczos(matrix, 2, steps=4, start=start).vectors)
