"""What a Hessian product costs, as a ratio to a plain gradient measured in the same process.

The floor is 2: differentiating the gradient walks its graph, which is about twice the forward and backward passes that
the gradient itself takes. Run: make bench
"""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import hessian_surgery as hs
from hessian_surgery.losses import cross_entropy
from hessian_surgery.models.resnet import resnet18

SAMPLES, REPEATS, STEPS = 64, 7, 18
RESULTS = Path(__file__).parent / "results" / "products.json"


def interleaved(functions: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds of each function, taken in turns so that a noisy moment falls on all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(REPEATS):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def measure() -> dict[str, float]:
    """Ratios to one gradient of ResNet-18 at 32×32."""
    torch.manual_seed(0)
    net = resnet18(10).eval()
    batch = (torch.randn(SAMPLES, 3, 32, 32), torch.arange(SAMPLES) % 10)
    space = hs.parameter_space(net)
    vector = torch.randn(space.dimension)
    resident = hs.Hessian(net, batch, space)
    streamed = hs.Hessian(net, batch, space, micro_batch=SAMPLES // 2)

    def gradient() -> tuple[Tensor, ...]:
        return torch.autograd.grad(cross_entropy(net(batch[0]), batch[1]), space.parameters)

    seconds = interleaved(
        {"gradient": gradient, "resident": lambda: resident(vector), "streamed": lambda: streamed(vector)}
    )
    start = time.perf_counter()
    hs.lanczos(resident, 9, steps=STEPS)
    seconds[f"lanczos of {STEPS} steps"] = time.perf_counter() - start
    return {name: value / seconds["gradient"] for name, value in seconds.items()}


def main() -> None:
    """Measure, print and write."""
    ratios = measure()
    for name, ratio in ratios.items():
        print(f"{name:>20} {ratio:6.2f} gradients")
    RESULTS.parent.mkdir(exist_ok=True)
    setting = {"network": "resnet18 at 32×32", "samples": SAMPLES, "threads": torch.get_num_threads()}
    RESULTS.write_text(json.dumps(setting | {"torch": torch.__version__, "ratios": ratios}, indent=1) + "\n")


if __name__ == "__main__":
    main()
