"""Minimizing many small functions at once, by L-BFGS.

Each function has its own line search and history. But all are evaluated together: on a GPU that
takes hardly longer than one.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# Evaluations of each function at most.
EVALUATIONS = 64
# A function is done if two steps in a row lower it by less than this share.
TOLERANCE = 1e-6
# Steps that the curvature is learnt from.
HISTORY = 10
# A step must lower a function by this share of what its slope promises.
ENOUGH = 1e-4
# After how many evaluations it is asked which are done: the answer has to come from the GPU.
ASK = 8

# Arguments (B, K), which functions are still wanted (b,) → values (b,) and slopes (b, K), together
# in (b, 1 + K); or those of all functions.
Evaluate = Callable[[Tensor, Tensor], Tensor]


@dataclass
class _Search:
    """Where B searches stand.

    `far` is how far along `way` each tries next; `slow` whether the last step gained little.
    """

    at: Tensor
    value: Tensor
    slope: Tensor
    way: Tensor
    far: Tensor
    slow: Tensor
    done: Tensor
    steps: Tensor
    bends: Tensor


def minimize_all(evaluate: Evaluate, start: Tensor) -> Tensor:
    """Minimize B functions of K arguments each from `start` (B, K); returns the arguments."""
    still = torch.arange(len(start), device=start.device)
    both = evaluate(start, still)
    slope = both[:, 1:]
    size = slope.norm(dim=1)
    history = start.new_zeros(HISTORY, *start.shape)
    far = 1 / size.clamp(min=1.0)
    slow = torch.zeros_like(size, dtype=torch.bool)
    search = _Search(start, both[:, 0], slope, -slope, far, slow, size == 0, history, history.clone())
    for number in range(1, EVALUATIONS):
        if number % ASK == 0:
            still = (~search.done).nonzero().squeeze(1)
            if len(still) == 0:
                break
        _advance(search, evaluate, still)
    return search.at


def _advance(search: _Search, evaluate: Evaluate, still: Tensor) -> None:
    """One evaluation: a search that finds less steps there, any other tries nearer."""
    step = search.far[:, None] * search.way
    both = evaluate(search.at + step, still)
    if len(both) < len(step):
        both = step.new_full((len(step), both.shape[1]), torch.inf).index_copy(0, still, both)
    value, slope = both[:, 0], both[:, 1:]
    promised = (search.slope * step).sum(dim=1)
    less = (value <= search.value + ENOUGH * promised) & ~search.done
    bend = torch.where(less[:, None], slope - search.slope, 0)
    curved = less & ((step * bend).sum(dim=1) > 1e-10 * step.norm(dim=1) * bend.norm(dim=1))
    search.steps = torch.where(curved[:, None], torch.cat([search.steps[1:], step[None]]), search.steps)
    search.bends = torch.where(curved[:, None], torch.cat([search.bends[1:], bend[None]]), search.bends)
    gained = search.value - value
    small = gained <= TOLERANCE * torch.maximum(search.value.abs(), value.abs()).clamp(min=1.0)
    # Where the parabola through the two values and the slope is least.
    nearer = (-promised / (2 * (value - search.value - promised)).clamp(min=1e-30)).nan_to_num(0.1).clamp(0.1, 0.5)
    stuck = ~less & (search.far * search.way.norm(dim=1) < 1e-7)
    search.done = search.done | (less & small & search.slow) | stuck
    search.slow = torch.where(less, small, search.slow)
    search.at = torch.where(less[:, None], search.at + step, search.at)
    search.value = torch.where(less, value, search.value)
    search.slope = torch.where(less[:, None], slope, search.slope)
    search.way = torch.where(less[:, None], _way(search), search.way)
    search.far = torch.where(less, torch.ones_like(search.far), search.far * nearer)


def _way(search: _Search) -> Tensor:
    """Minus the inverse Hessian, as learnt from the last steps, times the slope (B, K)."""
    found = search.slope.clone()
    dots = (search.steps * search.bends).sum(dim=2)
    inverse = torch.where(dots > 0, 1 / dots.clamp(min=1e-30), torch.zeros_like(dots))
    shares = []
    for i in reversed(range(HISTORY)):
        share = inverse[i] * (search.steps[i] * found).sum(dim=1)
        found = found - share[:, None] * search.bends[i]
        shares.append(share)
    last = dots[-1] / search.bends[-1].square().sum(dim=1).clamp(min=1e-30)
    found = torch.where(dots[-1] > 0, last, 1 / search.slope.norm(dim=1).clamp(min=1.0))[:, None] * found
    for i, share in zip(range(HISTORY), reversed(shares), strict=True):
        back = inverse[i] * (search.bends[i] * found).sum(dim=1)
        found = found + (share - back)[:, None] * search.steps[i]
    return -found
