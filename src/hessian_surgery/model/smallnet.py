"""The demo's small convolutional net, and its training."""

import torch
from torch import Tensor, nn

from hessian_surgery.data.labelled import LabelledSet
from hessian_surgery.model.losses import Loss, cross_entropy
from hessian_surgery.plain_modes import in_plain_modes
from hessian_surgery.seeding import generator


class SmallNet(nn.Module):
    """Two 3×3 convolutions with BatchNorm, pooling to 2×2, and a linear head.

    About 6,000 weights for 10 classes.
    """

    def __init__(self, num_classes: int, channels: int = 1, width: int = 16) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.fc = nn.Linear(8 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, channels, h, w) → logits (n, num_classes)."""
        logits: Tensor = self.fc(self.features(x))
        return logits


def smallnet(num_classes: int) -> SmallNet:
    """Build the small net for images of one channel."""
    return SmallNet(num_classes)


@in_plain_modes
def train_smallnet(
    data: LabelledSet, seed: int = 0, epochs: int = 12, batch_size: int = 32, loss: Loss = cross_entropy
) -> SmallNet:
    """Train the small net with Adam; the learning rate falls from 1e-2 along half a cosine.

    Example:
        >>> net = hs.train_smallnet(hs.digits().train, epochs=1)
        >>> net(torch.zeros(1, 1, 8, 8)).shape
        torch.Size([1, 10])
    """
    inputs = data.inputs()
    assert isinstance(inputs, Tensor)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = SmallNet(len(data.classes), channels=inputs.shape[1])
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    draw = generator(seed, "train")
    for _ in range(epochs):
        # BatchNorm needs a variance: a last batch of a single image is skipped.
        for chosen in torch.randperm(len(data), generator=draw).split(batch_size):
            if len(chosen) > 1:
                optimizer.zero_grad()
                loss(net(inputs[chosen]), data.labels[chosen]).backward()
                optimizer.step()
        schedule.step()
    return net.eval()
