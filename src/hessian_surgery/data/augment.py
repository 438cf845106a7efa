"""Images shifted and mirrored at random, on their device."""

import torch
from torch import Tensor

from hessian_surgery.data import batches
from hessian_surgery.data.batches import Inputs


def augmented(inputs: Inputs, shift: int, flip: bool) -> Inputs:
    """Shift each image, and mirror half of them; inputs without rows and columns stay as they are.

    The global random state of their device decides.

    Args:
        inputs: a batch.
        shift: largest shift in pixels, in each direction; what moves in repeats the edge.
        flip: whether images are mirrored, left to right.
    """
    return batches.map_tensors(lambda tensor: _moved(tensor, shift, flip) if tensor.ndim == 4 else tensor, inputs)


def _moved(images: Tensor, shift: int, flip: bool) -> Tensor:
    """Images (n, c, h, w), each shifted and perhaps mirrored; channels are innermost in memory."""
    count, _, height, width = images.shape
    device = images.device
    down, right = torch.randint(-shift, shift + 1, (2, count, 1), device=device)
    rows = (torch.arange(height, device=device) - down).clamp(0, height - 1)
    columns = (torch.arange(width, device=device) - right).clamp(0, width - 1)
    if flip:
        mirrored = torch.rand(count, 1, device=device) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    which = torch.arange(count, device=device)[:, None, None]
    return images[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
