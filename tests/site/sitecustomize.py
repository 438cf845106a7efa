"""Python runs this when it starts, in processes that tests start."""

import torchvision_operators  # noqa: F401
