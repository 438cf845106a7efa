"""What the default operation has to do, for an estimate of its cost."""

import math

import torch
from torch import Tensor

from hessian_surgery.directions.calibration_gradients import gradient_rows
from hessian_surgery.directions.moving import count_moving
from hessian_surgery.operation.coefficient_fit import PRICES
from hessian_surgery.operation.config import SurgeryConfig
from hessian_surgery.operation.driver import Work
from hessian_surgery.operation.proposal import count_plans

# What the logit changes along a direction cost, in forward passes: by forward-mode differentiation,
# and by a finite difference.
PASSES_PER_TANGENT = 2.9
PASSES_PER_DIFFERENCE = 1.0


def work_of(config: SurgeryConfig, counts: Tensor, device: torch.device) -> Work:
    """Passes at most: for directions, features of the head, logits before and after, measured fits.

    Only the moving images take part in those for directions and measured fits.
    """
    images = int(counts.sum())
    share = count_moving(images, device) / max(1, images)
    spikes = config.search.count(len(counts)) if config.uses_spikes else 0
    rows = gradient_rows(counts, len(config.alone)) if config.uses_gradients else ()
    crossed = len(rows) > 1
    gradients = sum(rows[:2])
    each = PASSES_PER_TANGENT if device.type == "cuda" else PASSES_PER_DIFFERENCE
    # The front has as many plans of its own as the first iteration; a head is refitted there only.
    plans = 2 * count_plans(config, config.uses_refit)
    plans += (config.iterations - 1) * count_plans(config, refit=False)
    # Each ray along directions is measured by a pass.
    measured = plans * len(PRICES) if spikes + gradients > 0 else 0
    # The logits before the first step are the report's as well.
    directions = math.ceil(share * (each * (spikes + gradients) + crossed))
    passes = config.iterations * (directions + 2) + config.uses_refit + 1 + math.ceil(share * measured)
    # Before a recalibration, crossed steps are measured as they are seen.
    passes += config.iterations * (config.recalibrate and (crossed or config.uses_refit))
    return Work(passes, backward=config.iterations * crossed)
