"""Fed-RAA and FedAvg learn segmentation (a class per pixel) on synthetic images of discs and squares on noise.

python examples/segmentation.py
"""

import argparse

import numpy as np
import torch
from torch import nn

import fedraa as fl

SIDE = 16


def draw_images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images [n, 1, side, side], and the class of each pixel: 0 (nothing), 1 (a disc) or 2 (a square)."""
    rng = np.random.default_rng(seed)
    row, column = np.mgrid[:SIDE, :SIDE]
    y = np.zeros((count, SIDE, SIDE), np.int64)
    for image in y:
        for kind in (1, 2):
            centre = rng.integers(4, SIDE - 4, 2)
            size = rng.integers(2, 4)
            offsets = np.abs([row - centre[0], column - centre[1]])
            distance = {1: np.hypot(*offsets), 2: offsets.max(axis=0)}[kind]
            image[distance <= size] = kind
    x = np.choose(y, [0.0, 1.0, -1.0]) + 0.5 * rng.normal(size=y.shape)
    return x[:, None].astype(np.float32), y


def build_network() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 3, 1)
    return nn.Sequential(*layers)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--images", type=int, default=400)
    flags.add_argument("--time", type=float, default=10.0)
    options = flags.parse_args()
    data = fl.Dataset("shapes", *draw_images(options.images, 0), *draw_images(options.images // 4, 1), classes=3)
    for method in ("fed-raa", "fedavg"):
        experiment = fl.Experiment(
            method=method, objective="segmentation", clients=8, lr=0.1, time=options.time, engine="local"
        )
        evals = fl.run(experiment, model=build_network(), dataset=data).evals
        first, last = evals["mean_iou"].iloc[[0, -1]]
        print(f"{method}: mean IoU {first:.3f} -> {last:.3f}, {evals['pixel_accuracy'].iloc[-1]:.1%} of the pixels")


if __name__ == "__main__":
    main()
