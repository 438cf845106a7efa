"""Let torchvision be imported beside a CPU build of torch.

Its compiled operators on PyPI are for CUDA builds. Beside a CPU build they do not load, and the
import fails over two operators that no classifier uses, unless they are declared before it.
"""

import sys
from importlib.abc import MetaPathFinder

declared = []


class BeforeTorchvision(MetaPathFinder):
    """Declares the operators when torchvision is first looked for."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname == "torchvision" and self in sys.meta_path:
            sys.meta_path.remove(self)
            import torch

            if torch.version.cuda is None:
                library = torch.library.Library("torchvision", "DEF")
                for name in ("nms", "qnms"):
                    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
                declared.append(library)


sys.meta_path.insert(0, BeforeTorchvision())
