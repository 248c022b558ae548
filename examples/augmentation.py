"""CIFAR-10's images, normalised, with crops and flips and without; Fed-RAA on a small CNN.

python examples/augmentation.py --images cifar10-subset.npz, which has x_train, y_train and so on; or it makes images
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn

import fedraa as fl

SIDE, CLASSES = 16, 10  # of images that are made


def made(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Stripes, as wide and as coloured as their class says, somewhere and under noise; mirrored as often as not."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, count)
    lean = rng.choice([-1, 1], count)[:, None, None]
    at = np.arange(SIDE)[:, None] + lean * np.arange(SIDE) + rng.uniform(0, SIDE, count)[:, None, None]
    stripes = np.sin(at * (0.4 + 0.3 * (y % 5))[:, None, None])
    x = np.stack([stripes, stripes * np.where(y < 5, 1, -1)[:, None, None], -stripes], axis=1)
    return np.clip(128 + 40 * x + 50 * rng.standard_normal(x.shape), 0, 255).astype(np.uint8), y


def images(path: Path | None, count: int) -> fl.Dataset:
    if path is None:
        return fl.Dataset("stripes", *made(count, 0), *made(500, 1), CLASSES)
    file = np.load(path)
    train = (file[name][:count] for name in ("x_train", "y_train"))
    return fl.Dataset(path.stem, *train, file["x_test"], file["y_test"], CLASSES)


def cnn(side: int) -> nn.Module:
    torch.manual_seed(0)
    blocks = [(nn.Conv2d(of, to, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)) for of, to in ((3, 16), (16, 32))]
    return nn.Sequential(*blocks[0], *blocks[1], nn.Flatten(), nn.Linear(32 * (side // 4) ** 2, CLASSES))


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--images", type=Path)
    flags.add_argument("--count", type=int, default=2000)
    flags.add_argument("--time", type=float, default=10.0)
    given = flags.parse_args()
    data = images(given.images, given.count)
    for transforms in (("normalize",), ("normalize", "crop(padding=2)", "flip")):
        experiment = fl.Experiment(
            transforms=transforms, clients=8, fragments=2, local_epochs=1, momentum=0.9, time=given.time, engine="local"
        )
        accuracy = fl.run(experiment, model=cnn(data.x_train.shape[-1]), dataset=data).evals["accuracy"]
        print(f"{', '.join(transforms)}: accuracy {accuracy.iloc[-1]:.1%}, at best {accuracy.max():.1%}")


if __name__ == "__main__":
    main()
