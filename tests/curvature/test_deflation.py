import numpy as np
import torch

import hessian_surgery as hs
from conftest import dense_hessian
from hessian_surgery.curvature.deflation import Deflated


def test_products_are_those_of_the_projected_matrix(net, batch):
    matrix = dense_hessian(net, *batch)
    q = torch.linalg.qr(torch.randn(len(matrix), 3, dtype=torch.float64))[0].T
    out = torch.eye(len(matrix), dtype=torch.float64) - q.T @ q
    operator = Deflated(hs.Hessian(net, batch), q)
    found = torch.stack([operator(row) for row in torch.eye(len(matrix), dtype=torch.float64)])
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
    rows = torch.eye(newton.space.dimension, dtype=torch.float64)
    exact = torch.linalg.eigvalsh(torch.stack([newton(row) for row in rows])).flip(0).numpy()
    first = hs.lanczos(newton, 2, tolerance=1e-10)
    following = hs.lanczos(Deflated(newton, first.vectors), 2, tolerance=1e-9)
    assert np.allclose(following.eigenvalues, exact[2:4], rtol=1e-8)


def test_the_vector_is_left_alone(net, batch):
    operator = Deflated(hs.Hessian(net, batch), torch.eye(3, hs.parameter_space(net).dimension, dtype=torch.float64))
    vector = torch.ones(operator.space.dimension, dtype=torch.float64)
    operator(vector)
    assert (vector == 1).all()
