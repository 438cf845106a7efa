"""The one place that knows which algorithm a config asks for."""

from typing import Any

from hessian_surgery.operation.config import OperationConfig
from hessian_surgery.operation.driver import Algorithm
from hessian_surgery.operation.iteration import DEFAULT
from hessian_surgery.paper.loop import LOOP

ALGORITHMS: dict[str, Algorithm[Any]] = {"default": DEFAULT, "loop": LOOP}


def algorithm_of(config: OperationConfig) -> Algorithm[Any]:
    """The algorithm that follows a config."""
    return ALGORITHMS[config.algorithm]
