import numpy as np
import pytest
import torch

import hessian_surgery as hs
from conftest import dense_hessian
from hessian_surgery.curvature.deflation import Deflated


def test_products_are_those_of_the_projected_matrix(net, batch):
    matrix = dense_hessian(net, *batch)
    q = torch.linalg.qr(torch.randn(len(matrix), 3, dtype=torch.float64))[0].T
    out = torch.eye(len(matrix), dtype=torch.float64) - q.T @ q
    operator = Deflated(hs.Hessian(net, batch), q)
    found = operator @ torch.eye(len(matrix), dtype=torch.float64)
    assert torch.allclose(found, out @ matrix @ out, atol=1e-12)


def test_deflated_lanczos_finds_the_next_eigenvalues(net, batch):
    matrix = dense_hessian(net, *batch)
    exact = torch.linalg.eigvalsh(matrix).flip(0).numpy()
    hessian = hs.Hessian(net, batch)
    first = hs.lanczos(hessian, 2, tolerance=1e-10)
    following = hs.lanczos(Deflated(hessian, first.vectors), 2, tolerance=1e-9)
    assert np.allclose(following.eigenvalues, exact[2:4], rtol=1e-8)
    assert (first.vectors @ following.vectors.T).abs().max() < 1e-9


def test_it_composes_with_gauss_newton(net, batch):
    newton = hs.GaussNewton(net, batch)
    matrix = newton @ torch.eye(newton.shape[0], dtype=torch.float64)
    exact = torch.linalg.eigvalsh(matrix).flip(0).numpy()
    first = hs.lanczos(newton, 2, tolerance=1e-10)
    following = hs.lanczos(Deflated(newton, first.vectors), 2, tolerance=1e-9)
    assert np.allclose(following.eigenvalues, exact[2:4], rtol=1e-8)


def test_the_vector_is_left_alone(net, batch):
    operator = Deflated(hs.Hessian(net, batch), torch.eye(3, hs.parameter_space(net).dimension, dtype=torch.float64))
    vector = torch.ones(operator.shape[0], dtype=torch.float64)
    assert not (operator @ vector)[:3].any()
    assert (vector == 1).all()


def test_a_dense_matrix_can_be_deflated():
    matrix = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
    rest = Deflated(matrix, torch.eye(1, 3))
    assert torch.equal(rest @ torch.ones(3), torch.tensor([0.0, 2.0, 1.0]))
    assert (rest.shape, rest.dtype, rest.device) == ((3, 3), matrix.dtype, matrix.device)
    assert hs.lanczos(rest, 1, tolerance=1e-5).eigenvalues[0] == pytest.approx(2)
