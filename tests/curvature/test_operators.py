import numpy as np
import pytest
import torch
from scipy.sparse.linalg import eigsh

import hessian_surgery as hs
from conftest import build, dense_hessian
from hessian_surgery.curvature.operators import FunctionOperator, Operator

KINDS = {
    "hessian": hs.Hessian,
    "gauss-newton": hs.GaussNewton,
    "deflated": lambda net, batch: hs.Deflated(hs.Hessian(net, batch), hs.lanczos(hs.Hessian(net, batch), 2).vectors),
}


@pytest.fixture(params=KINDS)
def operator(request, batch):
    return KINDS[request.param](build("conv"), batch)


def test_an_operator_looks_like_a_matrix(operator):
    space = hs.parameter_space(build("conv"))
    assert isinstance(operator, Operator)
    assert operator.shape == (space.dimension, space.dimension)
    assert operator.dtype == torch.float64
    assert operator.device == torch.device("cpu")


def test_columns_are_multiplied_one_by_one(operator):
    columns = torch.randn(operator.shape[0], 3, dtype=torch.float64)
    products = operator @ columns
    assert products.shape == columns.shape
    for i in range(3):
        assert torch.equal(products[:, i], operator @ columns[:, i].clone())


def test_a_vector_of_another_length_is_refused(operator):
    for wrong in (torch.ones(3), torch.ones(()), torch.ones(3, operator.shape[0]), torch.ones(operator.shape[0], 1, 1)):
        with pytest.raises(hs.InputError, match=r"H @ v: got v of shape"):
            operator @ wrong


def test_scipy_finds_the_same_eigenvalues(operator):
    exported = operator.to_scipy()
    assert exported.shape == operator.shape
    assert exported.dtype == np.float64
    dense = operator @ torch.eye(operator.shape[0], dtype=torch.float64)
    exact = torch.linalg.eigvalsh(dense).flip(0)[:2].numpy()
    assert np.allclose(eigsh(exported, k=2, which="LA", return_eigenvectors=False)[::-1], exact)
    for given in (np.ones(operator.shape[0]), np.ones((operator.shape[0], 1)), np.arange(operator.shape[0])[::-1]):
        found = exported @ given
        assert found.shape == given.shape
        assert np.allclose(found, dense.numpy() @ given)
        assert np.allclose(exported.H @ given, found)


def test_single_precision_stays_single_for_scipy(batch):
    operator = hs.Hessian(build("conv").float(), (batch[0].float(), batch[1]))
    product = operator.to_scipy() @ np.ones(operator.shape[0])
    assert product.dtype == np.float32
    exact = dense_hessian(build("conv"), *batch) @ torch.ones(operator.shape[0], dtype=torch.float64)
    assert np.allclose(product, exact.numpy(), atol=1e-5)


def test_a_dense_matrix_is_an_operator_and_a_function_is_not():
    assert isinstance(torch.eye(3), Operator)
    assert not isinstance(lambda vector: vector, Operator)


def test_a_function_becomes_an_operator(batch):
    matrix = torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))
    operator = FunctionOperator(lambda vector: matrix @ vector, torch.zeros(3, dtype=torch.float64))
    assert torch.equal(operator @ torch.eye(3, dtype=torch.float64), matrix)
    assert hs.spectral_density(operator, steps=3, probes=3).trace[0] == pytest.approx(6, abs=3)
    assert np.allclose(eigsh(operator.to_scipy(), k=1, return_eigenvectors=False), [3])
