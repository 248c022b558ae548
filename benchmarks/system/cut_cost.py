"""What a cut saves for real: one training step of a quarter of a model, relative to a step of the whole.

`python -m benchmarks.system.cut_cost` writes `benchmarks/results/cut_cost.csv`. The cut keeps the first units of every
group, as many as make its parameters 25 % of the model's. Steps of the cut and of the full model take turns in
one process, on one thread; the table has the medians.
"""

from __future__ import annotations

import csv
import time
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedraa.models.build import build_model
from fedraa.submodels import IndexSet, Traced, measure, prefix
from fedraa.submodels.tracing.trace import trace

RESULTS = Path(__file__).parents[1] / "results" / "cut_cost.csv"
MODELS = ("resnet18", "cnn-wide")
SHARE = 0.25
BATCH = 64


def quarter(traced: Traced) -> IndexSet:
    """The prefix cut whose share of the parameters is nearest to `SHARE`."""
    cuts = (prefix(traced, k / 200) for k in range(1, 201))
    return min(cuts, key=lambda indices: abs(len(traced.flat_index(indices)) / traced.size - SHARE))


def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> float:
    """Processor seconds of one training step: on one thread, and whatever else the machine does."""
    start = time.process_time()
    optimizer.zero_grad()
    torch.autograd.backward([F.cross_entropy(module(x), y)])
    optimizer.step()
    return time.process_time() - start


def compare(name: str, repeats: int) -> dict[str, object]:
    """One line of the table."""
    x, y = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))
    traced = trace(build_model(name, x, classes=10), x)
    indices = quarter(traced)
    modules = [traced.cut(i).train() for i in (traced.full(), indices)]
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.5) for module in modules]
    seconds: list[list[float]] = [[], []]
    for repeat in range(repeats + 1):
        for which in (0, 1):
            taken = step(modules[which], optimizers[which], x, y)
            if repeat:  # the first one warms up
                seconds[which].append(taken)
    full, cut = (measure(traced, i, x) for i in (traced.full(), indices))
    return {
        "model": name,
        "parameters": round(cut.params / full.params, 4),
        "bytes": round(cut.bytes / full.bytes, 4),
        "flops": round(cut.flops / full.flops, 4),
        "memory": round(cut.memory / full.memory, 4),
        "time": round(median(seconds[1]) / median(seconds[0]), 4),
        "full_step_seconds": round(median(seconds[0]), 4),
    }


def main(repeats: int = 9) -> list[dict[str, object]]:
    """Measure, write and return the table."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    lines = [compare(name, repeats) for name in MODELS]
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("w", newline="") as file:
        table = csv.DictWriter(file, list(lines[0]))
        table.writeheader()
        table.writerows(lines)
    return lines


if __name__ == "__main__":
    main()
