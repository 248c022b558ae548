"""Fed-RAA trains a small CNN on normalised images of CIFAR-10, with random crops and flips and without them.

python examples/augmentation.py --images cifar10-subset.npz    # without a file: synthetic images
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn

import fedraa as fl

# The side of a synthetic image in pixels, and the number of classes.
SIDE, CLASSES = 16, 10


def make_stripes(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy stripes whose width and colour depend on their class; half of them are mirrored."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, count)
    lean = rng.choice([-1, 1], count)[:, None, None]
    at = np.arange(SIDE)[:, None] + lean * np.arange(SIDE) + rng.uniform(0, SIDE, count)[:, None, None]
    stripes = np.sin(at * (0.4 + 0.3 * (y % 5))[:, None, None])
    x = np.stack([stripes, stripes * np.where(y < 5, 1, -1)[:, None, None], -stripes], axis=1)
    return np.clip(128 + 40 * x + 50 * rng.standard_normal(x.shape), 0, 255).astype(np.uint8), y


def load_images(path: Path | None, count: int) -> fl.Dataset:
    if path is None:
        return fl.Dataset("stripes", *make_stripes(count, 0), *make_stripes(500, 1), CLASSES)
    file = np.load(path)
    train = (file[name][:count] for name in ("x_train", "y_train"))
    return fl.Dataset(path.stem, *train, file["x_test"], file["y_test"], CLASSES)


def build_cnn(side: int) -> nn.Module:
    torch.manual_seed(0)
    blocks = [(nn.Conv2d(of, to, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)) for of, to in ((3, 16), (16, 32))]
    return nn.Sequential(*blocks[0], *blocks[1], nn.Flatten(), nn.Linear(32 * (side // 4) ** 2, CLASSES))


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--images", type=Path)
    flags.add_argument("--count", type=int, default=2000)
    flags.add_argument("--time", type=float, default=10.0)
    options = flags.parse_args()
    data = load_images(options.images, options.count)
    settings = {"clients": 8, "fragments": 2, "local_epochs": 1, "momentum": 0.9, "engine": "local"}
    for transforms in (("normalize",), ("normalize", "crop(padding=2)", "flip")):
        experiment = fl.Experiment(transforms=transforms, time=options.time, **settings)
        accuracy = fl.run(experiment, model=build_cnn(data.x_train.shape[-1]), dataset=data).evals["accuracy"]
        print(f"{', '.join(transforms)}: accuracy {accuracy.iloc[-1]:.1%}, at best {accuracy.max():.1%}")


if __name__ == "__main__":
    main()
