"""Room for many long vectors: on the device, or wherever there is enough."""

import torch

from hessian_surgery.curvature.basis import Basis, Place, Storage
from hessian_surgery.curvature.memory import Room, free_room

# The largest share of the free memory of one place that directions or logit changes may take.
SHARE = 0.4


def allocate_rows(count: int, dimension: int, dtype: torch.dtype, device: torch.device) -> Basis:
    """Make room for `count` vectors (dimension,), on the device or wherever there is enough."""
    place = place_rows(count * dimension * dtype.itemsize, free_room(device))
    return Basis(dimension, dtype, device, Storage(count, place))


def place_rows(size: int, room: Room) -> Place:
    """Choose where `size` bytes go: the device, the host's memory, or a temporary file."""
    if size <= SHARE * room.device:
        return "device"
    return "host" if size <= SHARE * room.host else "disk"
