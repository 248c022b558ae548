"""Which of torchvision's classifiers can be cut, and whether their cuts are right.

`python -m benchmarks.system.cut_models [MODEL ...]` writes `benchmarks/results/cut_models.csv`. It takes about half an
hour on one core, and 16 GB for the largest model. The property itself, `check`, is what the tests assert, too.
"""

from __future__ import annotations

import copy
import csv
import dataclasses
import importlib
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor, nn

from fedraa.data.vision import import_torchvision
from fedraa.submodels import IndexSet, Traced, flatten, load, measure
from fedraa.submodels.flat import trainable
from fedraa.submodels.tracing.recorder import tensors
from fedraa.submodels.tracing.trace import trace
from fedraa.submodels.tracing.verify import WithoutDropout

RESULTS = Path(__file__).parents[1] / "results" / "cut_models.csv"
SIDE = 64
TOLERANCE = 1e-6  # relative, in float64


def torchvision_models() -> ModuleType:
    """`torchvision.models`, also where torchvision's own operators are not compiled in."""
    import_torchvision()
    return importlib.import_module("torchvision.models")


def build(name: str) -> nn.Module:
    """A torchvision classifier for 64 x 64 images with random weights."""
    models = torchvision_models()
    options: dict[str, object] = {}
    if name.startswith("vit"):
        options["image_size"] = SIDE
    elif name.startswith("maxvit"):
        options["input_size"] = (SIDE, SIDE)
    elif name in ("googlenet", "inception_v3"):
        options["init_weights"] = False  # their own initialisation takes half a minute
    module = models.get_model(name, **options)
    assert isinstance(module, nn.Module)
    return module


def names(only: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """All torchvision classifiers (or these), each with the reason why it does not take 64 x 64 images, or ''."""
    models = torchvision_models()
    for name in only or models.list_models(module=models):
        try:
            with torch.no_grad():
                build(name).train()(torch.randn(2, 3, SIDE, SIDE))
        except (RuntimeError, ValueError, AssertionError) as error:
            yield name, str(error).splitlines()[0] or type(error).__name__
        else:
            yield name, ""


def random_cut(traced: Traced, rng: np.random.Generator) -> IndexSet:
    """Of each group a random number of units, chosen at random; never all of all groups."""
    sizes = [int(rng.integers(1, group.size)) for group in traced.groups]
    return tuple(np.sort(rng.permutation(group.size)[:size]) for group, size in zip(traced.groups, sizes, strict=True))


def check(traced: Traced, example: Tensor, indices: IndexSet, seed: int = 0) -> None:
    """Assert that a cut is right, in float64 with random parameters and running statistics.

    Its outputs, in evaluation and training mode, are those of the full module in which every parameter that
    is not part of the cut is zero; so are the gradients on the kept entries; and a write-back changes the
    kept entries and no others.
    """
    traced = dataclasses.replace(traced, module=copy.deepcopy(traced.module).double())
    full, flat = traced.module, traced.flat_index(indices)
    rng = torch.Generator().manual_seed(seed)
    _randomise(full, rng)
    theta = flatten(full)
    load(full, theta)  # theta is float32: now both hold exactly the same values
    small = traced.cut(indices)
    kept = np.zeros(traced.size, dtype=bool)
    kept[flat] = True
    assert kept.sum() == len(flat) == sum(p.numel() for p in trainable(small)) < traced.size
    np.testing.assert_array_equal(flatten(small), theta[flat])

    load(full, np.where(kept, theta, np.float32(0)))
    x = example
    if example.is_floating_point():
        x = torch.randn(example.shape, generator=rng, dtype=torch.float64)
    for training in (False, True):
        found, gradients = _run(small, x, training)
        expected, full_gradients = _run(full, x, training)
        for a, b in zip(found, expected, strict=True):
            _assert_close(a, b)
        for a, b, offset in zip(gradients, full_gradients, traced.offsets, strict=True):
            inside = flat[np.searchsorted(flat, offset) : np.searchsorted(flat, offset + b.numel())] - offset
            _assert_close(a.reshape(-1), b.reshape(-1)[torch.from_numpy(inside)])

    trained = theta[flat] + np.float32(1)
    theta[flat] = trained
    load(full, theta)
    np.testing.assert_array_equal(flatten(traced.cut(indices)), trained)
    np.testing.assert_array_equal(flatten(full)[~kept], theta[~kept])


def _randomise(module: nn.Module, rng: torch.Generator) -> None:
    """Nothing stays zero or one, so that nothing hides; signals stay of order one."""
    with torch.no_grad():
        for p in module.parameters():
            scale = 0.1 if p.dim() < 2 else 0.5 / (p.numel() / len(p)) ** 0.5
            p.add_(scale * torch.randn(p.shape, generator=rng, dtype=p.dtype))
        for name, buffer in module.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=rng, dtype=buffer.dtype))


def _run(module: nn.Module, x: Tensor, training: bool) -> tuple[list[Tensor], list[Tensor]]:
    """All outputs, and the gradients of a random projection of them."""
    module.train(training)
    with torch.random.fork_rng(), WithoutDropout():
        torch.manual_seed(0)
        out = [y for y in tensors(module(x.clone())) if y.requires_grad]
        loss = torch.stack([(y * torch.randn(y.shape, dtype=y.dtype)).sum() for y in out]).sum()
        parameters = trainable(module)
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
    gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
    return [y.detach() for y in out], gradients


def _assert_close(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    error, scale = (found - expected).abs().max(), expected.abs().max()
    assert error <= TOLERANCE * (1 + scale), f"off by {error:.3g} where values go to {scale:.3g}"


def share(traced: Traced) -> float:
    """The share of the parameters that run through some group."""
    whole = 0.0
    for name, shape in zip(traced.names, traced.shapes, strict=True):
        fixed = [float((units < 0).mean()) for units in traced.units.get(name, {}).values()]
        whole += float(np.prod(shape)) * float(np.prod(fixed))
    return 1 - whole / traced.size


def row(name: str, reason: str) -> dict[str, object]:
    """One line of the table: three random cuts of one model."""
    if reason:
        return {"model": name, "supported": f"does not take {SIDE} x {SIDE}", "reason": reason}
    torch.manual_seed(0)
    module, example = build(name), torch.randn(2, 3, SIDE, SIDE)
    start = time.perf_counter()
    traced = trace(module, example)
    del module
    seconds = time.perf_counter() - start
    rng = np.random.default_rng(0)
    supported, reason = (
        "yes",
        "; ".join(
            f"{count} x {why}" for why, count in Counter(x.split(": ")[1] for x in traced.uncut.values()).items()
        ),
    )
    line: dict[str, object] = {"model": name, "parameters": traced.size, "groups": len(traced.groups)}
    try:
        for seed in range(3):
            check(traced, example, random_cut(traced, rng), seed)
    except AssertionError as error:
        supported, reason = "no", str(error)
    half = tuple(max(1, group.size // 2) for group in traced.groups)
    full, cut = (measure(traced, widths, example) for widths in (traced.widths(traced.full()), half))
    if not (cut.params < full.params and cut.flops < full.flops and cut.bytes < full.bytes):
        supported, reason = "no", "half of its units is no cheaper than all"
    return line | {
        "supported": supported,
        "share_cuttable": round(share(traced), 4),
        "half_parameters": round(cut.params / full.params, 4),
        "half_flops": round(cut.flops / full.flops, 4),
        "half_memory": round(cut.memory / full.memory, 4),
        "trace_seconds": round(seconds, 2),
        "reason": reason,
    }


COLUMNS = (
    "model",
    "supported",
    "parameters",
    "groups",
    "share_cuttable",
    "half_parameters",
    "half_flops",
    "half_memory",
    "trace_seconds",
    "reason",
)


def main(only: Sequence[str] = ()) -> None:
    """Write the table, each line as soon as it is known. Named models are appended to the table there is."""
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a" if only else "w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS)
        if not only:
            table.writeheader()
        for name, reason in names(only):
            table.writerow(row(name, reason))
            file.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
