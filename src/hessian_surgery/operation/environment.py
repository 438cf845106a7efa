"""What figures depend on besides the seed: versions, device, threads."""

import platform
from typing import Any

import torch

from hessian_surgery.version import __version__


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, device and threads, as `result.json` holds them."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "hessian-surgery": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": name,
        "threads": torch.get_num_threads(),
    }
