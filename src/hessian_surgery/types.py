"""Types that all modules share."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

# A plain array of float64.
Array: TypeAlias = NDArray[np.float64]
# Called with (units done, units in total).
Progress: TypeAlias = Callable[[int, int], None]
