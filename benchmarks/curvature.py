"""The cost of products and eigenpairs, beside a plain gradient, other libraries and a floor.

    make bench                                    this library and others, on the CPU
    python -m benchmarks.curvature --device cuda  this library on a GPU

`--compiled` adds torch.compile of jvp∘grad. Images are 32×32. `--checkpoint` and `--data` give a
trained ResNet-50 and real images. Without them, networks are trained for a moment on made-up
images, which is enough for spikes to stand out.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hessian_surgery as hs
from benchmarks.peers import PEERS, Batch, Peer
from hessian_surgery.cli.inputs import open_model
from hessian_surgery.cli.options import InputOptions
from hessian_surgery.cuda_graphs import recorded_function
from hessian_surgery.curvature import batch_operator
from hessian_surgery.curvature.basis import inner, length
from hessian_surgery.model.classifier import deterministic_kernels
from hessian_surgery.model.resnet import resnet18, resnet50

NETWORKS = {"resnet18": resnet18, "resnet50": resnet50}
SAMPLES = 128
REPEATS = 7
TOLERANCE = 1e-3
RESULTS = Path(__file__).parent / "results"
Timed = dict[str, Callable[[], object]]


def interleaved(functions: Timed, device: torch.device) -> dict[str, float]:
    """Median seconds of each function. They run in turns: a noisy moment affects all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(REPEATS + 1):
        for name, function in functions.items():
            seconds[name].append(timed(function, device)[0])
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}  # the first warms up


def timed(function: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    """Seconds that a call takes, and its result."""
    _wait(device)
    start = time.perf_counter()
    result = function()
    _wait(device)
    return time.perf_counter() - start, result


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def made_up(network: str) -> tuple[nn.Module, Batch]:
    """Train a network for a moment on images of ten noisy patterns."""
    draw = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    net = NETWORKS[network](10)
    labels = torch.arange(SAMPLES) % 10
    patterns = torch.randn(10, 3, 32, 32, generator=draw)
    images = patterns[labels] + 2 * torch.randn(SAMPLES, 3, 32, 32, generator=draw)
    optimizer = torch.optim.Adam(net.parameters(), 1e-4)
    for _ in range(10):
        optimizer.zero_grad()
        F.cross_entropy(net(images), labels).backward()
        optimizer.step()
    return net.eval(), (images, labels)


def real(checkpoint: Path, data: str) -> tuple[nn.Module, Batch]:
    """Read a trained ResNet-50 and training images."""
    options = InputOptions(model="resnet50", checkpoint=checkpoint, data=data, device="cpu")
    opened = open_model(options, needs=("training",))
    batch = hs.hessian_batch(opened.parts.training, SAMPLES)
    return opened.model.eval(), (batch.inputs(), batch.labels)


def uncaptured(net: nn.Module, batch: Batch) -> hs.Hessian:
    """The Hessian without the CUDA graph that a GPU would record."""
    with patch.object(batch_operator, "recorded_function", lambda function, example: function):
        return hs.Hessian(net, batch)


def products(net: nn.Module, batch: Batch, compiled: bool) -> dict[str, float]:
    """Median seconds of a gradient and of products, by this library and by others."""
    space = hs.parameter_space(net)
    device = space.device
    vector = torch.randn(space.dimension, generator=torch.Generator().manual_seed(1)).to(device)

    def gradient() -> tuple[Tensor, ...]:
        return torch.autograd.grad(F.cross_entropy(net(batch[0]), batch[1]), space.parameters)

    resident = uncaptured(net, batch)
    streamed = hs.Hessian(net, batch, micro_batch=SAMPLES // 2)
    newton = hs.GaussNewton(net, batch)
    functions: Timed = {
        "gradient": gradient,
        "product": lambda: resident @ vector,
        "product, streamed": lambda: streamed @ vector,
        "Gauss–Newton product": lambda: newton @ vector,
    }
    if device.type == "cuda":
        kept = hs.Hessian(net, batch)
        functions["product, captured"] = lambda: kept @ vector
        functions["gradient, captured"] = captured_gradient(net, batch, space)
        if compiled:
            functions["product, compiled jvp∘grad"] = compiled_product(net, batch, space, vector)
    else:
        for make in PEERS:
            peer = make(net, batch)
            functions[f"product, {peer.name}"] = lambda peer=peer: peer.product(vector)  # type: ignore[misc]
    with deterministic_kernels(exact=True):
        return interleaved(functions, device)


def captured_gradient(net: nn.Module, batch: Batch, space: hs.ParameterSpace) -> Callable[[], object]:
    """A gradient that is recorded and replayed as products are, for a fair ratio."""

    def gradient(_: Tensor) -> Tensor:
        return space.flatten(torch.autograd.grad(F.cross_entropy(net(batch[0]), batch[1]), space.parameters))

    with deterministic_kernels(exact=True):
        replay = recorded_function(gradient, torch.zeros(1, device=space.device))
    return lambda: replay(torch.zeros(1, device=space.device))


def compiled_product(net: nn.Module, batch: Batch, space: hs.ParameterSpace, vector: Tensor) -> Callable[[], object]:
    """The product by torch.compile of forward over reverse mode."""
    weights = dict(zip(space.names, (p.detach() for p in space.parameters), strict=True))
    tangents = dict(zip(space.names, space.split(vector), strict=True))

    def loss(w: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(net, w, (batch[0],)), batch[1])

    product = torch.compile(lambda w, v: torch.func.jvp(torch.func.grad(loss), (w,), (v,))[1])
    seconds, _ = timed(lambda: product(weights, tangents), space.device)
    print(f"compiled in {seconds:.0f} s")
    return lambda: product(weights, tangents)


def residuals(hessian: hs.Hessian, vectors: Tensor) -> list[float]:
    """‖Hq − λq‖/λ of each vector, normalized, where λ is its Rayleigh quotient."""
    found = []
    for vector in vectors:
        unit = vector / length(vector)
        product = hessian @ unit
        value = inner(unit, product)
        found.append(length(product - value * unit) / abs(value))
    return found


def pairs(net: nn.Module, batch: Batch, k: int, peers: Sequence[Callable[..., Peer]]) -> list[dict[str, Any]]:
    """Seconds, products and residual of k pairs, by each library.

    A library that cannot stop at a residual gets twice the products that this one took.
    """
    device = next(net.parameters()).device
    rows: list[dict[str, Any]] = []
    hessian = hs.Hessian(net, batch)

    def row(name: str, seconds: float, count: int, vectors: Tensor) -> int:
        worst = max(residuals(hessian, vectors), default=float("inf"))
        reached = worst <= 2 * TOLERANCE and len(vectors) == k
        rows.append(
            {"library": name, "k": k, "seconds": seconds, "products": count, "residual": worst, "reached": reached}
        )
        print(f"{k:>3} pairs  {name:<22} {seconds:8.2f} s  {count:>4} products  residual {worst:.2g}", flush=True)
        return count

    seconds, spectrum = timed(lambda: hs.lanczos(hs.Hessian(net, batch), k, tolerance=TOLERANCE), device)
    vectors = torch.stack([spectrum.vector(i) for i in range(len(spectrum))])
    ours = row("hessian-surgery", seconds, spectrum.steps, vectors)
    for make in peers:
        peer = make(net, batch)
        seconds, found = timed(lambda peer=peer: peer.pairs(k, TOLERANCE, 2 * ours), device)  # type: ignore[misc]
        row(peer.name, seconds, found.products, found.vectors)
    return rows


def floor(net: nn.Module, batch: Batch) -> dict[str, float]:
    """The least seconds of a gradient and of a product: arithmetic and memory at full speed.

    A gradient takes one forward pass and two backward passes through each convolution and linear
    layer, and a product twice as many. Each pass reads and writes its feature maps once. The full
    speed is that of a large matrix product and of a large copy on this machine.
    """
    device = batch[0].device
    operations = 0
    moved = 0

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal operations, moved
        moved += 4 * (inputs[0].numel() + output.numel())
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            operations += 2 * output.numel() * module.weight[0].numel()

    hooks = [m.register_forward_hook(note) for m in net.modules() if not list(m.children())]
    with torch.no_grad():
        net(batch[0])
    for hook in hooks:
        hook.remove()
    size = 2048 if device.type == "cpu" else 8192
    a = torch.randn(size, size, device=device)
    b = torch.randn(1 << 26, device=device)
    with deterministic_kernels(exact=True):
        best = interleaved({"multiply": lambda: a @ a, "copy": lambda: b.clone()}, device)
    rate = 2 * size**3 / best["multiply"]
    bandwidth = 2 * b.nbytes / best["copy"]
    return {
        "gradient": max(3 * operations / rate, 3 * moved / bandwidth),
        "product": max(6 * operations / rate, 6 * moved / bandwidth),
        "arithmetic_per_product": 6.0 * operations,
        "bytes_per_product": 6.0 * moved,
        "measured_flops": rate,
        "measured_bandwidth": bandwidth,
    }


def measure(net: nn.Module, batch: Batch, compiled: bool) -> dict[str, Any]:
    """Measure one network."""
    seconds = products(net, batch, compiled)
    for name, value in seconds.items():
        print(f"{name:<28} {1000 * value:9.1f} ms {value / seconds['gradient']:6.2f} gradients", flush=True)
    peers = PEERS if batch[0].device.type == "cpu" else ()
    found = pairs(net, batch, 9, peers)
    # Libraries that have not reached the residual for 9 pairs are not tried on 20.
    able = [make for make, row in zip(peers, found[1:], strict=True) if row["reached"]]
    found += pairs(net, batch, 20, able)
    ratios = {name: value / seconds["gradient"] for name, value in seconds.items()}
    return {"seconds": seconds, "ratios": ratios, "pairs": found, "floor": floor(net, batch)}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS)[::-1])
    parser.add_argument("--checkpoint", type=Path, help="weights of a trained ResNet-50")
    parser.add_argument("--data", help="the images that it was trained on")
    parser.add_argument("--compiled", action="store_true", help="also time torch.compile of jvp∘grad")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    given = parser.parse_args()
    device = torch.device(given.device)
    torch.set_num_threads(2 if device.type == "cpu" else torch.get_num_threads())
    results: dict[str, Any] = {}
    for network in given.networks:
        trained = given.checkpoint and network == "resnet50"
        net, batch = real(given.checkpoint, given.data) if trained else made_up(network)
        print(f"{network}, {'trained' if trained else 'made-up images'}, n = {SAMPLES}, {device}")
        batch = (batch[0].to(device), batch[1].to(device))
        results[network] = {"trained": bool(trained)} | measure(net.to(device), batch, given.compiled)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    setting = {"device": name, "threads": torch.get_num_threads(), "torch": torch.__version__, "samples": SAMPLES}
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / ("curvature.json" if device.type == "cpu" else f"curvature-{device.type}.json")
    path.write_text(json.dumps(setting | {"tolerance": TOLERANCE, "networks": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
