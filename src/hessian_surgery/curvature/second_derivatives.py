"""Second derivatives of convolution and of evaluation-mode batch norm that are cheap.

PyTorch's own are slow. That of a convolution correlates whole feature maps as if they were kernels,
and that of batch norm is a chain of some forty element-wise operations. Both have plain forms: the
derivative of `convolution_backward` in each argument is one more convolution, and batch norm in
evaluation mode is a scale and a shift per channel. Forward passes inside `cheap_second_derivatives`
use these forms. A product through the kept graph of a gradient then costs about two gradients,
which is its floor, instead of three.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

_backward = torch.ops.aten.convolution_backward
_batch_norm_backward = torch.ops.aten.native_batch_norm_backward

# Stride, padding, dilation, groups.
Geometry: TypeAlias = tuple[list[int], list[int], list[int], int]


class _Convolution(torch.autograd.Function):
    """y = x ∗ w + b."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, geometry: Geometry, transposed: bool) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.geometry = geometry
        ctx.bias = None if b is None else list(b.shape)
        ctx.transposed = transposed
        return F.conv2d(x, w, b, *geometry)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, w = _fixed(ctx)
        wanted = list(ctx.needs_input_grad[:3])
        if not torch.is_grad_enabled():  # nothing will be differentiated again
            return (*_gradients(g, x, w, ctx.bias, ctx.geometry, wanted), None, None)
        return (*_ConvolutionBackward.apply(g, x, w, ctx.bias, ctx.geometry, wanted), None, None)


class _ConvolutionBackward(torch.autograd.Function):
    """(g, x, w) → the gradients in x, w and b: linear in each of g, x and w."""

    @staticmethod
    def forward(
        ctx: Any, g: Tensor, x: Tensor, w: Tensor, bias: list[int] | None, geometry: Geometry, wanted: list[bool]
    ) -> tuple[Tensor | None, ...]:
        ctx.save_for_backward(g, x, w)
        ctx.geometry = geometry
        ctx.set_materialize_grads(False)
        return _gradients(g, x, w, bias, geometry, wanted)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, hx: Tensor | None, hw: Tensor | None, hb: Tensor | None) -> tuple[Tensor | None, ...]:
        g, x, w = ctx.saved_tensors
        geometry = ctx.geometry
        needs = ctx.needs_input_grad
        along_g = along_x = along_w = None
        if needs[0] and hw is not None:
            along_g = F.conv2d(x, hw, hb, *geometry)
        elif needs[0] and hb is not None:
            along_g = hb.view(1, -1, 1, 1).expand_as(g).clone()
        if needs[0] and hx is not None:
            other = F.conv2d(hx, w, None, *geometry)
            along_g = other if along_g is None else along_g.add_(other)
        if needs[1] and hw is not None:
            along_x = _gradients(g, x, hw, None, geometry, [True, False, False])[0]
        if needs[2] and hx is not None:
            along_w = _gradients(g, hx, w, None, geometry, [False, True, False])[1]
        return along_g, along_x, along_w, None, None, None


def _gradients(
    g: Tensor, x: Tensor, w: Tensor, bias: list[int] | None, geometry: Geometry, wanted: list[bool]
) -> tuple[Tensor | None, ...]:
    stride, padding, dilation, groups = geometry
    return _backward(g, x, w, bias, stride, padding, dilation, False, [0, 0], groups, wanted)


class _Affine(torch.autograd.Function):
    """y = s x + b, with one s and b per channel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, s: Tensor, b: Tensor, transposed: bool) -> Tensor:
        ctx.save_for_backward(x, s)
        ctx.transposed = transposed
        ctx.unit = (torch.zeros_like(s), torch.ones_like(s))
        return torch.addcmul(_wide(b, x), x, _wide(s, x))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, s = _fixed(ctx)
        if not torch.is_grad_enabled():
            return (*_channel_gradients(g, x, s, ctx.unit), None)
        return (*_AffineBackward.apply(g, x, s, ctx.unit), None)


class _AffineBackward(torch.autograd.Function):
    """(g, x, s) → s g, Σ g x, Σ g, by batch norm's fused kernel with mean 0 and deviation 1."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, s: Tensor, unit: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        ctx.save_for_backward(g, x, s)
        ctx.set_materialize_grads(False)
        return _channel_gradients(g, x, s, unit)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, hx: Tensor | None, hs: Tensor | None, hb: Tensor | None) -> tuple[Tensor | None, ...]:
        g, x, s = ctx.saved_tensors
        _, needs_x, needs_s, _ = ctx.needs_input_grad
        hs = torch.zeros_like(s) if hs is None else hs
        hb = torch.zeros_like(s) if hb is None else hb
        along_g = torch.addcmul(_wide(hb, x), x, _wide(hs, x))
        along_x = g * _wide(hs, x) if needs_x else None
        if hx is None:
            return along_g, along_x, None, None
        along_g.addcmul_(hx, _wide(s, x))
        return along_g, along_x, (g * hx).sum([0, *range(2, g.ndim)]) if needs_s else None, None


def _channel_gradients(g: Tensor, x: Tensor, s: Tensor, unit: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    zero, one = unit
    return _batch_norm_backward(g, x, s, zero, one, zero, one, False, 0.0, [True, True, True])


def _fixed(ctx: Any) -> list[Tensor]:
    """A layer's input and weight; constants if only the vector pulled back is differentiated in."""
    return [tensor.detach() if ctx.transposed else tensor for tensor in ctx.saved_tensors]


def _wide(channels: Tensor, like: Tensor) -> Tensor:
    return channels.view(1, -1, *[1] * (like.ndim - 2))


def _convolve(
    transposed: bool,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | str = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> Tensor:
    if isinstance(padding, str) or input.ndim != 4 or _foreign(input, weight):
        return F.conv2d(input, weight, bias, stride, padding, dilation, groups)
    geometry = (_pair(stride), _pair(padding), _pair(dilation), groups)
    return _Convolution.apply(input, weight, bias, geometry, transposed)


def _normalize(
    transposed: bool,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if training or running_mean is None or running_var is None or weight is None or bias is None:
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    if _foreign(input, weight):
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    scale = weight * torch.rsqrt(running_var + eps)
    return _Affine.apply(input, scale, bias - running_mean * scale, transposed)


def _hard_sigmoid(transposed: bool, input: Tensor, inplace: bool = False) -> Tensor:
    """PyTorch's own, which MobileNetV3 has, lacks a second derivative."""
    return F.relu6(input + 3) / 6


def _foreign(input: Tensor, weight: Tensor | None) -> bool:
    """Whether PyTorch does more than the plain operation: autocast, mixed dtypes, vmap."""
    mixed = weight is not None and weight.dtype != input.dtype
    batched = torch._C._functorch.peek_interpreter_stack() is not None
    return mixed or batched or torch.is_autocast_enabled(input.device.type)


def _pair(value: int | tuple[int, ...]) -> list[int]:
    both = [value] if isinstance(value, int) else list(value)
    return both * 2 if len(both) == 1 else both


_REPLACED: dict[Any, Callable[..., Tensor]] = {
    F.conv2d: _convolve,
    F.batch_norm: _normalize,
    F.hardsigmoid: _hard_sigmoid,
}


class cheap_second_derivatives(TorchFunctionMode):
    """A block in which some functions are this file's: `conv2d`, evaluation-mode `batch_norm`, and
    `hardsigmoid`; with the same values.

    Args:
        transposed: gradients Jᵀu will be differentiated in u, the vector pulled back, and in
            nothing else; the other derivatives are then left out.
    """

    def __init__(self, transposed: bool = False) -> None:
        super().__init__()
        self._transposed = transposed

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace these functions; PyTorch calls this for every function of its own."""
        if func in _REPLACED:
            return _REPLACED[func](self._transposed, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))
