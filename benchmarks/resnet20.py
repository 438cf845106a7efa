"""A ResNet-20 for CIFAR-size images, the net that timings on two CPU cores are taken with.

python -m benchmarks.resnet20 --data parquet:cifar10 --out resnet20.safetensors --device cuda
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from hessian_surgery.data.images import Preprocessing
from hessian_surgery.data.sources import open_data
from hessian_surgery.data.splits import join_sets
from hessian_surgery.model.resnet import BasicBlock
from hessian_surgery.seeding import generator
from hessian_surgery.weights.tensorfile import save_tensors

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
BATCH = 128
LEARNING_RATE = 0.1


def network(classes: int = 10) -> nn.Sequential:
    """Three stages of three blocks, 16 to 64 channels (He et al. 2016, section 4.2)."""
    widths = [16] * 3 + [32] * 3 + [64] * 3
    blocks = [
        BasicBlock(before, width, stride=1 if before == width else 2)
        for before, width in zip([16, *widths], widths, strict=False)
    ]
    stem = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def augmented(images: Tensor, draw: torch.Generator) -> Tensor:
    """A batch of images (n, 3, 32, 32), shifted by up to four pixels, half of them mirrored."""
    x, y = torch.randint(0, 9, (2,), generator=draw).tolist()
    shifted = functional.pad(images, (4, 4, 4, 4))[:, :, y : y + images.shape[2], x : x + images.shape[3]]
    mirrored = (torch.rand(len(images), generator=draw) < 0.5).to(images.device)
    return torch.where(mirrored[:, None, None, None], shifted.flip(3), shifted)


def train(data: str, out: Path, epochs: int, device: str, seed: int = 0) -> float:
    """Train on the training part; write the weights, and return the accuracy on the test part."""
    torch.manual_seed(seed)
    parts = open_data(data, seed, Preprocessing(mean=MEAN, std=STD))
    draw = generator(seed, "resnet20")
    training, test = parts.training, join_sets(parts.calibration, parts.heldout)
    net = network(len(training.classes)).to(device)
    steps = epochs * (len(training) // BATCH)
    optimizer = torch.optim.SGD(net.parameters(), LEARNING_RATE, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    images, labels = training.inputs().to(device), training.labels.to(device)
    for _ in range(epochs):
        order = torch.randperm(len(labels), generator=draw).to(device)
        for chosen in order.split(BATCH)[: len(labels) // BATCH]:
            loss = functional.cross_entropy(net(augmented(images[chosen], draw)), labels[chosen])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
    save_tensors(out, net.state_dict())
    net.eval()
    with torch.no_grad():
        shown = test.batches(BATCH, torch.device(device))
        right = sum(int((net(inputs).argmax(dim=1) == labels.to(device)).sum()) for inputs, labels in shown)
    return right / len(test)


def main() -> None:
    """Train and say how accurate the net is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="such as parquet:cifar10")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    print(f"accuracy {train(given.data, given.out, given.epochs, given.device):.4f}")


if __name__ == "__main__":
    main()
