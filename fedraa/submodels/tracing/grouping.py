"""The computation of width groups from the labels of a trace.

A label is the number of a unit (see labels.py). Labels are tied if their units must be cut together. All labels that
are tied to each other have a common root, which is the smallest of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain

import numpy as np
import torch
from torch import Tensor, nn

from fedraa.submodels.resize import GROUPED, PARTS, Number, Place, Resize, Sizes, slice_ranges
from fedraa.submodels.traced import Entry, Group, Traced
from fedraa.submodels.tracing.labels import FIXED, Roots, compress_labels, varies_along
from fedraa.submodels.tracing.recorder import Recorder, Site

Units = dict[str, dict[int, np.ndarray]]


def group_units(module: nn.Module, recorder: Recorder) -> Traced:
    """Return the traced module: complete the recorder's ties, and number the units group by group."""
    while True:
        _settle_ties(recorder)
        roots = recorder.ties.resolve()
        units, groups, number = _number_groups(module, _find_roots(recorder, roots), _find_parts(recorder.sites, roots))
        sizes, unclear = _find_sizes(recorder.sites, groups, partial(_number_units, roots, number))
        if not unclear:
            break
        for site in unclear:
            recorder.ties.pin(site.before, "the code of the module fixes its width")
    names, shapes, offsets, size = flat_layout(module)
    return Traced(
        module=module,
        groups=groups,
        uncut=_left_whole(module, recorder, roots, units),
        names=names,
        shapes=shapes,
        offsets=offsets,
        size=size,
        units=units,
        grouped=frozenset(recorder.grouped),
        estimated=frozenset(recorder.estimated),
        sizes=sizes,
    )


def _number_units(roots: Roots, number: np.ndarray, labels: Tensor) -> np.ndarray:
    """Return the number of the unit of each label, or -1 for a label that is never cut.

    Args:
        roots: The root of each label. Labels that are tied have the same root.
        number: The unit's number for each root.
        labels: The labels.
    """
    return np.asarray(number[np.minimum(roots(labels), len(number) - 1)])


def flat_layout(module: nn.Module) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...], tuple[int, ...], int]:
    """Return names, shapes and offsets of the trainable parameters in the flat vector, and its length."""
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    shapes = tuple(tuple(p.shape) for p in parameters.values())
    *offsets, size = [0, *accumulate(p.numel() for p in parameters.values())]
    return tuple(parameters), shapes, tuple(offsets), size


def _settle_ties(recorder: Recorder) -> None:
    """Add ties until the units of every tensor lie along only one of its dimensions."""
    ties = recorder.ties
    both = sorted(recorder.raw.keys() & recorder.bound.keys())
    for name in both:
        if recorder.raw[name].dim() == 1:
            ties.tie(recorder.raw[name], recorder.bound[name][0])
    wide = [name for name in both if recorder.raw[name].dim() > 1]
    reasons = dict.fromkeys(wide, "its weight is also used outside its layer") | recorder.whole
    for name, reason in reasons.items():
        for labels in recorder.bound.get(name, {}).values():
            ties.pin(labels, reason)
        if name in recorder.raw:
            ties.pin(recorder.raw[name], reason)
    while True:
        roots = ties.resolve()
        settled = True
        for labels in (*recorder.splits, *recorder.raw.values()):
            resolved = torch.from_numpy(roots(labels))
            dims = [d for d in range(resolved.dim()) if varies_along(resolved, d)]
            if len(dims) > 1:
                ties.tie_along(labels, dims[:1], "a view splits the units in two dimensions")
                settled = False
        if settled:
            return


def _find_roots(recorder: Recorder, roots: Roots) -> Units:
    """Return for each tensor and dimension the root of the unit at each index."""
    entries = {name: {dim: roots(x) for dim, x in dims.items()} for name, dims in recorder.bound.items()}
    for name, labels in recorder.raw.items():
        resolved = torch.from_numpy(roots(labels))
        for dim in range(resolved.dim()):
            if varies_along(resolved, dim):
                entries.setdefault(name, {})[dim] = _first_line(resolved, dim)
    return entries


def _find_parts(sites: Iterable[Site], roots: Roots) -> list[np.ndarray]:
    """Return the roots of the units in each part of a tensor that a slicing call takes.

    Units inside and outside of such a part are in different groups.
    """
    parts = []
    for site in sites:
        if site.name not in PARTS:
            continue
        along = _find_dimension(site.before, roots)
        if along is not None:
            ranges = slice_ranges(site.name, site.args, site.kwargs, *along) or ()
            parts += [along[1][a:b] for a, b in ranges]
    return parts


def _number_groups(
    module: nn.Module, entries: Units, parts: Sequence[np.ndarray]
) -> tuple[Units, tuple[Group, ...], np.ndarray]:
    """Return the numbers of units, the groups, and the number of each root (-1 for labels that are never cut).

    The units are numbered group by group. The units of a group lie along the same dimensions, and in the same parts.

    Args:
        module: The traced module.
        entries: For each tensor and dimension, the root of the unit at each index.
        parts: For each part that a slicing call takes, the roots of its units.
    """
    order = [name for name, _ in (*module.named_parameters(), *module.named_buffers()) if name in entries]
    places = [(name, dim) for name in order for dim in sorted(entries[name])]
    size = 1 + _largest_root(entries)
    signature = np.zeros(size, dtype=np.uint64)
    first = np.full(size, np.iinfo(np.int64).max)
    marks = np.random.default_rng(0).integers(1, 2**63, size=len(places) + len(parts), dtype=np.uint64)
    start = 0
    for (name, dim), mark in zip(places, marks, strict=False):
        root = entries[name][dim]
        signature += np.bincount(root, minlength=size).astype(np.uint64) * mark
        np.minimum.at(first, root, start + np.arange(len(root)))
        start += len(root)
    used = np.flatnonzero(signature)
    for part, mark in zip(parts, marks[len(places) :], strict=True):
        signature += np.bincount(part[part < size], minlength=size).astype(np.uint64) * mark
    used = used[used != FIXED]
    used = used[np.argsort(first[used], kind="stable")]

    # The last entry, which stays -1, is for labels that belong to no tensor.
    number = np.full(size + 1, -1)
    groups: list[Group] = []
    _, which, counts = np.unique(signature[used], return_inverse=True, return_counts=True)
    # A group needs two or more units, because a single unit cannot be cut.
    together = [used[which == key] for key in dict.fromkeys(which.tolist()) if counts[key] > 1]
    next_unit = 0
    for members, group in zip(together, _describe_groups(module, entries, places, together), strict=True):
        if not group.parameters:
            # The units of this group are only in buffers, so a cut would remove no parameter.
            continue
        number[members] = next_unit + np.arange(len(members))
        next_unit += len(members)
        groups.append(group)
    units: Units = {}
    for name, dim in places:
        if (number[entries[name][dim]] >= 0).any():
            units.setdefault(name, {})[dim] = number[entries[name][dim]]
    return units, tuple(groups), number


def _largest_root(entries: Units) -> int:
    """Return the largest root of all tensors, or 0 if there is no tensor."""
    roots = chain.from_iterable(dims.values() for dims in entries.values())
    return max((int(x.max(initial=0)) for x in roots), default=0)


def _find_sizes(
    sites: Iterable[Site], groups: Sequence[Group], number: Callable[[Tensor], np.ndarray]
) -> tuple[Mapping[str, Sizes], list[Site]]:
    """Return for each module the calls whose sizes change in a cut, and a list of calls without a rule for this change.

    If several calls at one place in the code would change differently in a cut, the place has no rule.

    Args:
        sites: The recorded calls.
        groups: The width groups.
        number: A function that returns the unit of each label.
    """
    resizes: dict[tuple[str, Place], Resize | None] = {}
    unclear = []
    for site in sites:
        if site.name == GROUPED:
            resize: Resize | None = Resize(-1, (), (), False)
        else:
            along = _find_dimension(site.before, number)
            if along is None:
                continue
            resize = _find_resize(site, along, groups, number)
        key = (site.module, site.place)
        if key in resizes:
            resize = _merge_resizes(resizes[key], resize)
        resizes[key] = resize
        if site.name in PARTS and resize is None:
            unclear.append(site)
    sizes: dict[str, dict[Place, Resize]] = {}
    for (module, place), resize in resizes.items():
        if resize is not None and (resize.numbers or resize.dim < 0):
            sizes.setdefault(module, {})[place] = resize
    return sizes, unclear


def _merge_resizes(first: Resize | None, second: Resize | None) -> Resize | None:
    """Return the rule for two calls at one place in the code, or None if they change differently in a cut."""
    if first == second:
        return first
    if first is None or second is None or not first.outs:
        return None
    common = first._replace(outs=first.outs[:1], numbers=first.numbers[:1])
    if common != second._replace(outs=second.outs[:1], numbers=second.numbers[:1]):
        return None
    return common


def _find_resize(
    site: Site, along: tuple[int, np.ndarray], groups: Sequence[Group], number: Callable[[Tensor], np.ndarray]
) -> Resize | None:
    """Return the rule by which the sizes in a call change in a cut, or None if they do not follow from widths.

    Args:
        site: The call.
        along: The dimension that may be cut, and the unit at each of its indices.
        groups: The width groups.
        number: A function that returns the unit of each label.
    """
    dim, line = along
    if site.name in PARTS:
        ranges = slice_ranges(site.name, site.args, site.kwargs, dim, line)
        if ranges is None:
            return None
        return _as_known(dim, (), [_count_units(line[a:b], groups) for a, b in ranges], False)
    after = _find_dimension(site.after[0], number)
    if after is None:
        return None
    out, line = after
    shape = site.after[0].shape
    sources = [_find_sources(site.before.shape, shape, d) for d in range(len(shape))]
    # A unit may cover several dimensions of the view. The inner ones, such as the width of a head, keep their sizes.
    inner = [d for d, dims in enumerate(sources) if d > out and dims == {dim}]
    numbers = [_count_units(line, groups), *(Number(shape[d], ()) for d in inner)]
    return _as_known(dim, (out, *inner), numbers, bool(sources[out] - {dim}))


def _as_known(dim: int, outs: tuple[int, ...], numbers: Sequence[Number | None], mixed: bool) -> Resize | None:
    """Return a Resize with these numbers, or None if a number is unknown.

    Args:
        dim: Cut dimension of the argument.
        outs: Dimensions of the result that come from this dimension.
        numbers: The numbers, with None for an unknown number.
        mixed: True if one of the numbers is multiplied by another size, such as the number of samples.
    """
    known = tuple(number for number in numbers if number is not None)
    if len(known) < len(numbers):
        return None
    return Resize(dim, outs, known, mixed)


def _count_units(line: np.ndarray, groups: Sequence[Group]) -> Number | None:
    """Return the size of a dimension as a function of the widths, or None if the size does not follow from the widths.

    `line` holds the unit at each index of the dimension.
    """
    starts = np.cumsum([0, *(group.size for group in groups)])
    units, counts = np.unique(line[line >= 0], return_counts=True)
    owners = np.searchsorted(starts, units, side="right") - 1
    times = []
    for g in np.unique(owners).tolist():
        mine = counts[owners == g]
        if len(mine) != groups[g].size or len(set(mine.tolist())) > 1:
            # The dimension contains only a part of the group, or some units of the group more often than others.
            return None
        times.append((g, int(mine[0])))
    return Number(int((line < 0).sum()), tuple(times))


def _find_sources(before: Sequence[int], after: Sequence[int], out: int) -> set[int]:
    """Return the dimensions of a view's source whose index changes with the index of dimension `out` of the view.

    Args:
        before: Shape of the source.
        after: Shape of the view.
        out: Dimension of the view.
    """
    if math.prod(before) != math.prod(after):
        # The shapes have different numbers of elements, so this is not a view.
        return set()
    line = np.arange(after[out]) * math.prod(after[out + 1 :])
    return {d for d, place in enumerate(np.unravel_index(line, tuple(before))) if place.any()}


def _find_dimension(labels: Tensor, number: Callable[[Tensor], np.ndarray]) -> tuple[int, np.ndarray] | None:
    """Return the dimension along which units may be cut, and the unit at each of its indices.

    Return None if there is no such dimension, or more than one.
    """
    units = torch.from_numpy(number(compress_labels(labels)[0]))
    dims = [dim for dim in range(units.dim()) if varies_along(units, dim)]
    if len(dims) != 1:
        return None
    return dims[0], _first_line(units, dims[0])


def _first_line(values: Tensor, dim: int) -> np.ndarray:
    """Return the values along a dimension, at the first position of all other dimensions."""
    line: np.ndarray = values.movedim(dim, -1).reshape(-1, values.size(dim))[0].numpy()
    return line


def _describe_groups(
    module: nn.Module, entries: Units, places: Sequence[tuple[str, int]], together: Sequence[np.ndarray]
) -> list[Group]:
    """Return a group for each set of units in `together`, with the dimensions along which its units lie.

    Args:
        module: The traced module.
        entries: For each tensor and dimension, the root of the unit at each index.
        places: The tensors and dimensions in order.
        together: For each group, the roots of its units.
    """
    trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
    runs: list[list[Entry]] = [[] for _ in together]
    # For each group, a mapping from the name of a parameter to the share of its elements outside of the group.
    outside: list[dict[str, float]] = [{} for _ in together]
    owner = np.full(1 + _largest_root(entries), -1)
    for g, members in enumerate(together):
        owner[members] = g
    for name, dim in places:
        owners = owner[entries[name][dim]]
        counts = np.bincount(owners[owners >= 0], minlength=len(together))
        for g in np.flatnonzero(counts).tolist():
            runs[g].append(Entry(name, dim, int(counts[g]) // len(together[g])))
            if name in trainable:
                outside[g][name] = outside[g].get(name, 1.0) * (1 - counts[g] / len(owners))
    groups = []
    for members, along, shares in zip(together, runs, outside, strict=True):
        parameters = sum(round(trainable[name].numel() * (1 - share)) for name, share in shares.items())
        groups.append(Group(_layer_name(along[0].tensor), len(members), tuple(along), parameters))
    return groups


def _left_whole(
    module: nn.Module, recorder: Recorder, roots: Roots, units: Mapping[str, Mapping[int, np.ndarray]]
) -> dict[str, str]:
    """Return the layers that stay whole or are cut in part, each with one sentence of explanation.

    Args:
        module: The traced module.
        recorder: The recorder of the trace.
        roots: The root of each label.
        units: For each tensor and dimension, the unit at each index.
    """
    uncut = {}
    for name, _ in module.named_parameters():
        dim = recorder.unit_dims.get(name)
        layer = _layer_name(name)
        if dim is not None:
            labels = recorder.bound[name][dim]
            fixed = units.get(name, {}).get(dim, np.full(len(labels), -1)) < 0
            if fixed.any():
                fate = "stays whole" if fixed.all() else "is cut in part"
                reason = recorder.ties.reason(labels[torch.from_numpy(fixed)], roots)
                uncut[layer] = f"{layer} {fate}: {reason}."
        elif name not in units and name in recorder.whole:
            uncut[layer] = f"{layer} stays whole: {recorder.whole[name]}."
        elif name not in units and name in recorder.raw and recorder.raw[name].numel() > 1:
            uncut[layer] = f"{layer} stays whole: {recorder.ties.reason(recorder.raw[name], roots)}."
    return uncut


def _layer_name(parameter: str) -> str:
    return parameter.removesuffix(".weight").removesuffix(".in_proj_weight")
