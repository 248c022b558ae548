"""Segmentation of made images: discs and squares on noise, a class per pixel; Fed-RAA against FedAvg.

python examples/segmentation.py
"""

import argparse

import numpy as np
import torch
from torch import nn

import fedraa as fl

SIDE = 16


def shapes(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 1, side, side], and for each pixel 0 (nothing), 1 (a disc) or 2 (a square)."""
    rng = np.random.default_rng(seed)
    row, column = np.mgrid[:SIDE, :SIDE]
    y = np.zeros((count, SIDE, SIDE), np.int64)
    for image in y:
        for kind in (1, 2):
            at, size = rng.integers(4, SIDE - 4, 2), rng.integers(2, 4)
            away = np.stack([row - at[0], column - at[1]])
            image[(np.hypot(*away) if kind == 1 else np.abs(away).max(axis=0)) <= size] = kind
    x = np.choose(y, [0.0, 1.0, -1.0]) + 0.5 * rng.normal(size=y.shape)
    return x[:, None].astype(np.float32), y


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 3, 1)
    return nn.Sequential(*layers)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--images", type=int, default=400)
    flags.add_argument("--time", type=float, default=10.0)
    given = flags.parse_args()
    data = fl.Dataset("shapes", *shapes(given.images, 0), *shapes(given.images // 4, 1), classes=3)
    for method in ("fed-raa", "fedavg"):
        experiment = fl.Experiment(
            method=method, objective="segmentation", clients=8, lr=0.1, time=given.time, engine="local"
        )
        evals = fl.run(experiment, model=net(), dataset=data).evals
        first, last = evals["mean_iou"].iloc[[0, -1]]
        print(f"{method}: mean IoU {first:.3f} -> {last:.3f}, {evals['pixel_accuracy'].iloc[-1]:.1%} of the pixels")


if __name__ == "__main__":
    main()
