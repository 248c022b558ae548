"""Small convolutional networks.

The arguments of each function are the shape of the images (channels, height, width) and the number of classes.
"""

from torch import nn

from fedraa.models.images import ImageConv2d


def cnn(channels: int, height: int, width: int, classes: int) -> nn.Sequential:
    """Return RA-Fed's network for CIFAR-10, with two convolutions (6 and 16 channels) and two hidden layers (120, 84).

    The 5x5 convolutions are padded by 2 if the images are smaller than 16x16.
    """
    padding = 0 if min(height, width) >= 16 else 2

    def halve_side(size: int) -> int:
        return (size - 4 + 2 * padding) // 2

    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * halve_side(halve_side(height)) * halve_side(halve_side(width)), 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


def wide_cnn(channels: int, height: int, width: int, classes: int) -> nn.Sequential:
    """Return a network for CIFAR with three padded 3x3 convolutions, each with a 2x2 pool, and two dense layers.

    A ReLU after a pool has the same result as a ReLU before it, at a quarter of the cost.
    """
    return nn.Sequential(
        ImageConv2d(channels, 64, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(128, 256, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256 * (height // 8) * (width // 8), 512),
        nn.ReLU(),
        nn.Linear(512, classes),
    )


def emnist_cnn(channels: int, height: int, width: int, classes: int) -> nn.Sequential:
    """Return the EMNIST network of Reddi et al. 2021, with dropout: 1,206,590 parameters at 62 classes."""
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, classes),
    )
