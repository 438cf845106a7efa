"""The head's biases as directions: one for each output, linear at any length."""

import math

import numpy as np
import torch
from torch import Tensor

from hessian_surgery.directions.family import Directions, Probe
from hessian_surgery.evidence.accuracies import logit_unit
from hessian_surgery.model.evaluation import output_name
from hessian_surgery.model.head import Head


def bias_directions(probe: Probe, head: Head | None) -> Directions | None:
    """Make a direction of each bias of the head; None if it has no biases or they may not move."""
    if head is None or head.bias_name not in probe.space.names:
        return None
    sizes = [parameter.numel() for parameter in probe.space.parameters]
    first = sum(sizes[: probe.space.names.index(head.bias_name)])
    count = probe.logits.shape[1]
    unit = logit_unit(probe.logits) * math.sqrt(count)

    def vector(i: int) -> Tensor:
        row = torch.zeros(probe.space.dimension, dtype=probe.space.dtype, device=probe.space.device)
        row[first + i] = 1
        return row

    labels = tuple(f"bias of {output_name(i, probe.data.classes)}" for i in range(count))
    none = torch.zeros(0, *probe.outputs.shape, device=probe.space.device)
    scales = np.full(count, unit)
    return Directions("bias", labels, probe.space, vector, scales, probe.outputs, none, bias_unit=unit, bias_at=first)
