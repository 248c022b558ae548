"""Measure the time of a training step, for the full model and for a submodel with a quarter of the parameters.

`python -m benchmarks cut_cost` writes `benchmarks/results/cut_cost.csv` with median times. The submodel consists of the
first units of every layer. Submodels of GPT-2-small have the whole vocabulary.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.system.option_checks import refuse_below, refuse_unknown_names
from benchmarks.system.rows import open_table, write_table
from fedraa.models.build import build_model
from fedraa.submodels import IndexSet, Traced, measure_cost, take_prefix
from fedraa.submodels.tracing.recorder import iterate_tensors
from fedraa.submodels.tracing.trace import trace_module

RESULTS = Path(__file__).parents[1] / "results" / "cut_cost.csv"
SHARE = 0.25

# A model, a batch and the targets of the batch.
Made = tuple[nn.Module, Tensor, Tensor]


def builtin_model(name: str) -> Callable[[], Made]:
    """Return a function that makes a built-in model for images of 32 x 32."""

    def make_model() -> Made:
        x = torch.randn(64, 3, 32, 32)
        return build_model(name, x, classes=10), x, torch.randint(0, 10, (len(x),))

    return make_model


def vit_small() -> Made:
    """Return ViT-S/16 for images of 224 x 224 (22 million parameters)."""
    transformer = importlib.import_module("torchvision.models.vision_transformer").VisionTransformer
    return transformer(224, 16, 12, 6, 384, 1536), torch.randn(4, 3, 224, 224), torch.randint(0, 1000, (4,))


def gpt2_small(words: int = 256) -> Made:
    """Return GPT-2-small (twelve blocks of width 768) from the package transformers."""
    library = importlib.import_module("transformers")
    x = torch.randint(0, words, (2, 128))
    return library.GPT2LMHeadModel(library.GPT2Config(vocab_size=words, use_cache=False)), x, x.roll(-1, 1)


MODELS: dict[str, Callable[[], Made]] = {
    "resnet18": builtin_model("resnet18"),
    "cnn-wide": builtin_model("cnn-wide"),
    "vit-s": vit_small,
    "gpt2-small": gpt2_small,
    "gpt2-small-50257": partial(gpt2_small, 50257),
}


def quarter_cut(traced: Traced) -> IndexSet:
    """Return the submodel with about the fraction `SHARE` of the model's parameters.

    It has the first units of every layer.
    """
    cuts = (take_prefix(traced, k / 200) for k in range(1, 201))
    return min(cuts, key=lambda indices: abs(traced.count(indices) / traced.size - SHARE))


def time_step(module: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> float:
    """Take a training step on one thread and return its CPU seconds.

    Args:
        module: The model.
        optimizer: The optimizer of the model.
        x: A batch.
        y: The targets of the batch.
    """
    start = time.process_time()
    optimizer.zero_grad()
    scores = next(iterate_tensors(module(x)))
    torch.autograd.backward([F.cross_entropy(scores.flatten(0, -2), y.flatten())])
    optimizer.step()
    return time.process_time() - start


def compare_steps(name: str, repeats: int) -> dict[str, object]:
    """Measure the training steps of a model and of its submodel. Return a table row that compares them."""
    module, x, y = MODELS[name]()
    traced = trace_module(module, x)
    indices = quarter_cut(traced)
    modules = [traced.cut(i).train() for i in (traced.full(), indices)]
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.5) for module in modules]
    seconds: list[list[float]] = [[], []]
    for repeat in range(repeats + 1):
        for which in (0, 1):
            taken = time_step(modules[which], optimizers[which], x, y)
            # The first repetition includes one-time work.
            if repeat:
                seconds[which].append(taken)
    full, cut = (measure_cost(traced, i, x) for i in (traced.full(), indices))
    return {
        "model": name,
        "parameters": round(cut.params / full.params, 4),
        "bytes": round(cut.bytes / full.bytes, 4),
        "flops": round(cut.flops / full.flops, 4),
        "memory": round(cut.memory / full.memory, 4),
        "time": round(median(seconds[1]) / median(seconds[0]), 4),
        "full_step_seconds": round(median(seconds[0]), 4),
    }


def main(models: tuple[str, ...] = tuple(MODELS), repeats: int = 9, out: Path = RESULTS) -> list[dict[str, object]]:
    """Measure models, and write and return the table.

    Rows of models that are not measured stay in the table.

    Args:
        models: The models to measure.
        repeats: The number of measured steps of each model.
        out: The table.
    """
    refuse_unknown_names("models", models, MODELS)
    refuse_below(1, repeats=repeats)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows = open_table(out, ("model", "full_step_seconds"))
    lines: dict[str, dict[str, object]] = {row["model"]: dict(row) for row in rows}
    for name in models:
        lines[name] = compare_steps(name, repeats)
        Console().print(lines[name])
    table = list(lines.values())
    write_table(out, list(table[0]), table)
    return table
