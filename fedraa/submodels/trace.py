"""Find the width groups of any module."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor, nn

from fedraa.submodels.labels import FIXED, Roots, varies
from fedraa.submodels.recorder import DataDependentError, Recorder, tensors
from fedraa.submodels.rules import RULES
from fedraa.submodels.traced import Entry, Group, Traced
from fedraa.submodels.verify import Trial

Units = dict[str, dict[int, np.ndarray]]


def trace(module: nn.Module, example: Tensor) -> Traced:
    """Find every index space of units along which `module` can be made smaller.

    The module runs on `example`, in evaluation and in training mode, while labels of units follow its tensors
    through every function. Units that must vanish together are tied; a group is a set of units that run
    through the same dimensions. Inputs and outputs are never cut, nor is anything that is not sure to stay
    exact: a cut gives what the full module gives when the parameters of its absent units are zero.

    Args:
        module: any module with one tensor as its input. It is copied, not changed.
        example: a batch of at least two inputs.

    Raises:
        ValueError: the example does not run through the module, or the forward pass depends on data.
    """
    if example.dim() < 1 or len(example) < 2:
        raise ValueError(f"example: shape {tuple(example.shape)} given, expected a batch of at least 2")
    module = copy.deepcopy(module)
    recorder = _record(module, example)
    traced = _assemble(module, recorder)
    trial = Trial(traced, example)
    while (failure := trial.fails(traced, range(len(traced.groups)))) is not None:
        suspects = [g for g in range(len(traced.groups)) if trial.fails(traced, [g])]
        for g in suspects or range(len(traced.groups)):
            _pin(recorder, traced, g, failure)
        traced = _assemble(module, recorder)
    return traced


def _assemble(module: nn.Module, recorder: Recorder) -> Traced:
    _settle(recorder)
    roots = recorder.ties.resolve()
    units, groups = _group(module, _entries(recorder, roots))
    shapes = [(n, tuple(p.shape), p.numel()) for n, p in module.named_parameters() if p.requires_grad]
    ends = list(accumulate(size for _, _, size in shapes))
    return Traced(
        module=module,
        groups=groups,
        uncut=_left_whole(module, recorder, roots, units),
        names=tuple(name for name, _, _ in shapes),
        shapes=tuple(shape for _, shape, _ in shapes),
        offsets=tuple([0, *ends][: len(shapes)]),
        size=ends[-1] if ends else 0,
        units=units,
        grouped=frozenset(recorder.grouped),
    )


def _pin(recorder: Recorder, traced: Traced, g: int, reason: str) -> None:
    entry = traced.groups[g].entries[0]
    start = sum(group.size for group in traced.groups[:g])
    units = traced.units[entry.tensor][entry.dim]
    mine = torch.from_numpy((units >= start) & (units < start + traced.groups[g].size))
    if entry.tensor in recorder.raw:
        labels = recorder.raw[entry.tensor].movedim(entry.dim, 0)[mine]
    else:
        labels = recorder.bound[entry.tensor][entry.dim][mine]
    recorder.ties.pin(labels, reason)


def _record(module: nn.Module, example: Tensor) -> Recorder:
    scratch = copy.deepcopy(module)  # training mode moves running statistics
    recorder = Recorder(scratch, RULES)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it hides the layers inside
    try:
        with torch.no_grad(), torch.random.fork_rng():
            for training in (False, True):  # some parts, such as auxiliary heads, run in training only
                scratch.train(training)
                inputs = example[:2].clone()
                recorder.track(inputs)
                with recorder:
                    out = scratch(inputs)
                for tensor in tensors(out):
                    recorder.ties.pin(recorder.labels(tensor), "it is the output of the model")
    except DataDependentError as error:
        raise ValueError(f"module: {type(module).__name__} cannot be traced, {error}") from None
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError, AttributeError) as error:
        raise ValueError(
            f"example: a batch {tuple(example.shape)} of {example.dtype} does not run through "
            f"{type(module).__name__}: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
        ) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return recorder


def _settle(recorder: Recorder) -> None:
    """Add ties until every tensor can be cut along one of its dimensions at a time."""
    ties = recorder.ties
    for name, reason in recorder.whole.items():
        for labels in (*recorder.bound.get(name, {}).values(), *filter(None, [recorder.raw.get(name)])):
            ties.pin(labels, reason)
    for name in recorder.raw.keys() & recorder.bound.keys():
        for labels in (recorder.raw[name], *recorder.bound[name].values()):
            ties.pin(labels, "its weight is also used outside its layer")
    while True:
        roots = ties.resolve()
        settled = True
        for labels in (*recorder.splits, *recorder.raw.values()):
            found = torch.from_numpy(roots(labels))
            dims = [d for d in range(found.dim()) if varies(found, d)]
            if len(dims) > 1:
                ties.span(labels, dims[:1], "a view splits them in two dimensions")
                settled = False
        if settled:
            return


def _entries(recorder: Recorder, roots: Roots) -> Units:
    """Per tensor and dimension, the root of each index."""
    entries = {name: {dim: roots(x) for dim, x in dims.items()} for name, dims in recorder.bound.items()}
    for name, labels in recorder.raw.items():
        found = torch.from_numpy(roots(labels))
        for dim in range(found.dim()):
            if varies(found, dim):
                entries.setdefault(name, {})[dim] = found.movedim(dim, -1).reshape(-1, found.size(dim))[0].numpy()
    return entries


def _group(module: nn.Module, entries: Units) -> tuple[Units, tuple[Group, ...]]:
    """Number the units group by group; a group's units run through the same dimensions equally often."""
    order = [name for name, _ in (*module.named_parameters(), *module.named_buffers()) if name in entries]
    places = [(name, dim) for name in order for dim in sorted(entries[name])]
    size = 1 + max((int(x.max(initial=0)) for dims in entries.values() for x in dims.values()), default=0)
    signature = np.zeros(size, dtype=np.uint64)
    first = np.full(size, np.iinfo(np.int64).max)
    marks = np.random.default_rng(0).integers(1, 2**63, size=len(places), dtype=np.uint64)
    start = 0
    for (name, dim), mark in zip(places, marks, strict=True):
        root = entries[name][dim]
        signature += np.bincount(root, minlength=size).astype(np.uint64) * mark
        np.minimum.at(first, root, start + np.arange(len(root)))
        start += len(root)
    used = np.flatnonzero(signature)
    used = used[used != FIXED]
    used = used[np.argsort(first[used], kind="stable")]

    number = np.full(size, -1)
    groups: list[Group] = []
    _, which, counts = np.unique(signature[used], return_inverse=True, return_counts=True)
    next_unit = 0
    for key in dict.fromkeys(which.tolist()):
        if counts[key] < 2:
            continue  # a single unit has nothing to cut
        members = used[which == key]
        number[members] = next_unit + np.arange(len(members))
        next_unit += len(members)
        groups.append(_describe(module, entries, places, members))
    units: Units = {}
    for name, dim in places:
        if (number[entries[name][dim]] >= 0).any():
            units.setdefault(name, {})[dim] = number[entries[name][dim]]
    return units, tuple(groups)


def _describe(module: nn.Module, entries: Units, places: list[tuple[str, int]], members: np.ndarray) -> Group:
    trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
    found, through = [], dict[str, float]()
    for name, dim in places:
        mine = np.isin(entries[name][dim], members)
        if mine.any():
            found.append(Entry(name, dim, int(mine.sum()) // len(members)))
            if name in trainable:
                through[name] = through.get(name, 1.0) * (1 - mine.mean())
    parameters = sum(round(trainable[name].numel() * (1 - rest)) for name, rest in through.items())
    return Group(found[0].tensor.removesuffix(".weight"), len(members), tuple(found), parameters)


def _left_whole(
    module: nn.Module, recorder: Recorder, roots: Roots, units: Mapping[str, Mapping[int, np.ndarray]]
) -> dict[str, str]:
    uncut = {}
    for name, _ in module.named_parameters():
        dim = recorder.made.get(name)
        layer = name.removesuffix(".weight")
        if dim is not None:
            labels = recorder.bound[name][dim]
            fixed = units.get(name, {}).get(dim, np.full(len(labels), -1)) < 0
            if fixed.any():
                what = "stays whole" if fixed.all() else "is cut in part"
                reason = recorder.ties.reason(labels[torch.from_numpy(fixed)], roots)
                uncut[layer] = f"{layer} {what}: {reason}."
        elif name in recorder.whole and name not in units:
            uncut[layer] = f"{layer} stays whole: {recorder.whole[name]}."
    return uncut
