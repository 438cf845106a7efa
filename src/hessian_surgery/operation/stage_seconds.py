"""Seconds by stage, from a trial of each kind of work and how often it is done."""

from hessian_surgery.directions.class_gradients import TRAINING_IMAGES
from hessian_surgery.operation.coefficient_fit import PRICES
from hessian_surgery.operation.crossfit import FOLDS
from hessian_surgery.operation.driver import Work
from hessian_surgery.operation.minimize import EVALUATIONS
from hessian_surgery.operation.size_up import Sizes
from hessian_surgery.operation.trial import Trial

# What a Hessian product over a batch costs, in gradients of the batch.
GRADIENTS_PER_PRODUCT = 2.0
# What a fit costs, with the search's own arithmetic, in the evaluations that a trial times.
FITS = 1.3
# How often a head's fit and its temperature's are evaluated; from 1 to 26 times.
HEAD_EVALUATIONS = 15
# What moving the weights along a direction and back costs, in additions of vectors.
MOVES = 3


def seconds_by_stage(
    trial: Trial, sizes: Sizes, work: Work, operations: int, iterations: int, products: int
) -> dict[str, float]:
    """Seconds of each stage, over all operations and iterations.

    Args:
        trial: what each kind of work takes.
        sizes: how much of it there is.
        work: forward passes of the paper's loop.
        operations: how many; those of folds have a little less to do.
        iterations: of each operation.
        products: Hessian products of each iteration.
    """
    images = sizes.images
    forward = images * trial.forward.seconds
    heldout = sizes.heldout * trial.forward.seconds
    crossed = len(sizes.gradients) > 1
    differentiated = sizes.drawn + crossed * min(sizes.moving, TRAINING_IMAGES)
    fits = (2 if sizes.directions else 1) * FITS * EVALUATIONS * images * trial.fit.seconds
    # Each half of the images sees a step of its own along crossed directions, and so does a refit.
    refit = sizes.refit
    vectors = (1 + (crossed or refit)) * FOLDS * sizes.directions * trial.vector
    measured = len(PRICES) * (sizes.moving * trial.forward.seconds + vectors) if sizes.directions else 0.0
    each = {
        # Batch sizes are tried for as long as a pass, at most.
        "prepare": 2 * forward + heldout,
        "spikes": products * GRADIENTS_PER_PRODUCT * sizes.hessian_images * trial.gradient.seconds,
    }
    if sizes.with_plan:
        slopes = (sizes.directions - refit) * (sizes.moving * trial.slope.seconds + MOVES * trial.vector)
        # The logits of a further iteration; the features that a head is fitted to in the first.
        again = (1 + (refit - 1) / iterations) * forward
        # The two halves have all images between them.
        head = HEAD_EVALUATIONS * images * trial.head / iterations
        each["directions"] = again + differentiated * trial.gradient.seconds + slopes + head
        plan = sizes.plans * (measured + fits)
        # Without a refit there is half as much to plan.
        each["plan"] = plan * (1 + 1 / iterations) / 2 if refit else plan
        if operations == 1:
            each["front"] = plan / iterations  # in the first iteration only; folds have none
        # Before a recalibration, the crossed step is measured too.
        each["measure"] = (1 + (sizes.recalibrated and (crossed or refit))) * forward
    else:
        back = work.backward * images * trial.gradient.seconds + work.extra_images * trial.forward.seconds
        each["sensitivity"] = ((work.passes - 2 - iterations - work.backward) * forward + back) / iterations
        each["measure"] = forward
    each["report"] = (1 + sizes.recalibrated) * forward + heldout
    once = ("prepare", "report")
    return {name: operations * (1 if name in once else iterations) * taken for name, taken in each.items()}
