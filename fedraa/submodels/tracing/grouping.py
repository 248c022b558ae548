"""The computation of width groups from the labels of a trace.

labels.py defines unit, label, tie and root. Further words:

- Group: units along the same dimensions of the same tensors, such as the neurons of a layer. Its width is the number of
  units that a submodel keeps.
- ID: the number of a unit, counted group by group; -1 for an index that is never cut.
- Part: the indices that a slicing call takes, such as the first 64 in `x[:, :64]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn

from fedraa.submodels.flat import flat_layout
from fedraa.submodels.resize import GROUPED, PARTS, Place, Resize, SizeFormula, Sizes, slice_ranges
from fedraa.submodels.traced import Entry, Group, Traced
from fedraa.submodels.tracing.labels import FIXED, Roots, compress_labels, varies_along
from fedraa.submodels.tracing.recorder import RecordedCall, Recorder

Units = dict[str, dict[int, np.ndarray]]


def group_units(module: nn.Module, recorder: Recorder) -> Traced:
    """Return the traced module, with the recorded units divided into groups."""
    while True:
        _settle_ties(recorder)
        roots = recorder.ties.resolve()
        tensor_roots, part_roots = _find_roots(recorder, roots), _find_parts(recorder.sites, roots)
        units, groups, id_of_root = _form_groups(module, tensor_roots, part_roots)
        sizes, unclear = _find_sizes(recorder.sites, groups, partial(_find_ids, roots, id_of_root))
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


def _find_ids(roots: Roots, id_of_root: np.ndarray, labels: Tensor) -> np.ndarray:
    """Return the ID of each label's unit, or -1 if the label is never cut.

    Args:
        roots: The root of each label.
        id_of_root: The ID of the unit for which each root stands.
        labels: The labels.
    """
    return np.asarray(id_of_root[np.minimum(roots(labels), len(id_of_root) - 1)])


def _settle_ties(recorder: Recorder) -> None:
    """Add ties until the units of every tensor lie along at most one dimension."""
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
    """Return the root at each index of each dimension with units, for all parameters and buffers."""
    entries = {name: {dim: roots(x) for dim, x in dims.items()} for name, dims in recorder.bound.items()}
    for name, labels in recorder.raw.items():
        resolved = torch.from_numpy(roots(labels))
        for dim in range(resolved.dim()):
            if varies_along(resolved, dim):
                entries.setdefault(name, {})[dim] = _values_along(resolved, dim)
    return entries


def _find_parts(sites: Iterable[RecordedCall], roots: Roots) -> list[np.ndarray]:
    """Return the roots in each part. A part's units form their own groups."""
    parts = []
    for site in sites:
        if site.name not in PARTS:
            continue
        along = _find_dimension(site.before, roots)
        if along is not None:
            ranges = slice_ranges(site.name, site.args, site.kwargs, *along) or ()
            parts += [along[1][a:b] for a, b in ranges]
    return parts


def _form_groups(
    module: nn.Module, entries: Units, parts: Sequence[np.ndarray]
) -> tuple[Units, tuple[Group, ...], np.ndarray]:
    """Divide the units into groups, and give each unit its ID.

    Args:
        module: The traced module.
        entries: The root at each index, for each tensor and each of its dimensions with units.
        parts: For each part, the roots at its indices.

    Returns:
        The ID at each index of each dimension with units, the groups, and the ID of each root (-1 if it is never cut).
    """
    order = [name for name, _ in (*module.named_parameters(), *module.named_buffers()) if name in entries]
    dimensions = [(name, dim) for name in order for dim in sorted(entries[name])]
    size = 1 + _largest_root(entries)
    # A root's signature is the sum of random marks of the dimensions and parts that contain it. Roots with equal
    # signatures form a group.
    signature = np.zeros(size, dtype=np.uint64)
    first = np.full(size, np.iinfo(np.int64).max)
    marks = np.random.default_rng(0).integers(1, 2**63, size=len(dimensions) + len(parts), dtype=np.uint64)
    start = 0
    for (name, dim), mark in zip(dimensions, marks, strict=False):
        root = entries[name][dim]
        signature += np.bincount(root, minlength=size).astype(np.uint64) * mark
        np.minimum.at(first, root, start + np.arange(len(root)))
        start += len(root)
    used = np.flatnonzero(signature)
    for part, mark in zip(parts, marks[len(dimensions) :], strict=True):
        signature += np.bincount(part[part < size], minlength=size).astype(np.uint64) * mark
    used = used[used != FIXED]
    used = used[np.argsort(first[used], kind="stable")]

    # The last entry is for labels that no parameter and no buffer has.
    id_of_root = np.full(size + 1, -1)
    groups: list[Group] = []
    _, which, counts = np.unique(signature[used], return_inverse=True, return_counts=True)
    # A single unit cannot be cut.
    together = [used[which == key] for key in dict.fromkeys(which.tolist()) if counts[key] > 1]
    next_id = 0
    for members, group in zip(together, _describe_groups(module, entries, dimensions, together), strict=True):
        if not group.parameters:
            # These units are only in buffers, so a cut would remove no parameter.
            continue
        id_of_root[members] = next_id + np.arange(len(members))
        next_id += len(members)
        groups.append(group)
    units: Units = {}
    for name, dim in dimensions:
        if (id_of_root[entries[name][dim]] >= 0).any():
            units.setdefault(name, {})[dim] = id_of_root[entries[name][dim]]
    return units, tuple(groups), id_of_root


def _largest_root(entries: Units) -> int:
    roots = chain.from_iterable(dims.values() for dims in entries.values())
    return max((int(x.max(initial=0)) for x in roots), default=0)


def _find_sizes(
    sites: Iterable[RecordedCall], groups: Sequence[Group], find_ids: Callable[[Tensor], np.ndarray]
) -> tuple[Mapping[str, Sizes], list[RecordedCall]]:
    """Return the calls with sizes that differ in submodels, and the slicing calls without a Resize.

    A Resize computes a call's sizes from the widths. A place in the code whose calls need different sizes gets none.

    Args:
        sites: The recorded calls.
        groups: The width groups.
        find_ids: Returns the ID of each label's unit.
    """
    resizes: dict[tuple[str, Place], Resize | None] = {}
    unclear = []
    for site in sites:
        if site.name == GROUPED:
            resize: Resize | None = Resize(-1, (), (), False)
        else:
            along = _find_dimension(site.before, find_ids)
            if along is None:
                continue
            resize = _find_resize(site, along, groups, find_ids)
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
    """Return the common Resize of two calls at one place in the code, or None if they differ."""
    if first == second:
        return first
    if first is None or second is None or not first.outs:
        return None
    common = first._replace(outs=first.outs[:1], numbers=first.numbers[:1])
    if common != second._replace(outs=second.outs[:1], numbers=second.numbers[:1]):
        return None
    return common


def _find_resize(
    site: RecordedCall, along: tuple[int, np.ndarray], groups: Sequence[Group], find_ids: Callable[[Tensor], np.ndarray]
) -> Resize | None:
    """Return how a call's sizes follow from the widths of the groups, or None if they do not.

    Args:
        site: The call.
        along: The dimension of the first argument that may be cut, and the ID at each of its indices.
        groups: The width groups.
        find_ids: Returns the ID of each label's unit.
    """
    dim, ids = along
    if site.name in PARTS:
        ranges = slice_ranges(site.name, site.args, site.kwargs, dim, ids)
        if ranges is None:
            return None
        return _as_known(dim, (), [_derive_size(ids[a:b], groups) for a, b in ranges], False)
    after = _find_dimension(site.after[0], find_ids)
    if after is None:
        return None
    out, ids = after
    shape = site.after[0].shape
    sources = [_find_sources(site.before.shape, shape, d) for d in range(len(shape))]
    # A view may split a dimension into heads and the features of a head. A cut changes only the number of heads.
    inner = [d for d, dims in enumerate(sources) if d > out and dims == {dim}]
    sizes = [_derive_size(ids, groups), *(SizeFormula(shape[d], ()) for d in inner)]
    return _as_known(dim, (out, *inner), sizes, bool(sources[out] - {dim}))


def _as_known(dim: int, outs: tuple[int, ...], sizes: Sequence[SizeFormula | None], mixed: bool) -> Resize | None:
    """Return a Resize with these sizes, or None if one of the sizes is unknown.

    Args:
        dim: Cut dimension of the argument.
        outs: Dimensions of the result that come from this dimension.
        sizes: The sizes as functions of the widths; None for an unknown size.
        mixed: True if one of the sizes is multiplied by another size, such as the number of samples.
    """
    known = tuple(size for size in sizes if size is not None)
    if len(known) < len(sizes):
        return None
    return Resize(dim, outs, known, mixed)


def _derive_size(ids: np.ndarray, groups: Sequence[Group]) -> SizeFormula | None:
    """Return a dimension's size as a function of the groups' widths, such as 2 * width + 1.

    The result is None if the widths do not determine the size.

    Args:
        ids: The ID at each index of the dimension.
        groups: The width groups.
    """
    starts = np.cumsum([0, *(group.size for group in groups)])
    units, counts = np.unique(ids[ids >= 0], return_counts=True)
    owners = np.searchsorted(starts, units, side="right") - 1
    times = []
    for g in np.unique(owners).tolist():
        mine = counts[owners == g]
        if len(mine) != groups[g].size or len(set(mine.tolist())) > 1:
            # The dimension does not contain all units of the group equally often.
            return None
        times.append((g, int(mine[0])))
    return SizeFormula(int((ids < 0).sum()), tuple(times))


def _find_sources(before: Sequence[int], after: Sequence[int], out: int) -> set[int]:
    """Return the dimensions of a view's source that form dimension `out` of the view."""
    if math.prod(before) != math.prod(after):
        # A view has the same number of elements as its source, so this is none.
        return set()
    elements = np.arange(after[out]) * math.prod(after[out + 1 :])
    return {d for d, index in enumerate(np.unravel_index(elements, tuple(before))) if index.any()}


def _find_dimension(labels: Tensor, find_units: Callable[[Tensor], np.ndarray]) -> tuple[int, np.ndarray] | None:
    """Return the dimension along which units lie and the unit at each index, or None unless there is exactly one.

    Args:
        labels: The labels of a tensor.
        find_units: Returns the root or the ID of each label's unit.
    """
    units = torch.from_numpy(find_units(compress_labels(labels)[0]))
    dims = [dim for dim in range(units.dim()) if varies_along(units, dim)]
    if len(dims) != 1:
        return None
    return dims[0], _values_along(units, dims[0])


def _values_along(values: Tensor, dim: int) -> np.ndarray:
    """Return the values along a dimension, at index 0 of all other dimensions."""
    along: np.ndarray = values.movedim(dim, -1).reshape(-1, values.size(dim))[0].numpy()
    return along


def _describe_groups(
    module: nn.Module, entries: Units, dimensions: Sequence[tuple[str, int]], together: Sequence[np.ndarray]
) -> list[Group]:
    """Return the groups, each with the dimensions along which its units lie.

    Args:
        module: The traced module.
        entries: The root at each index, for each tensor and each of its dimensions with units.
        dimensions: These tensors and dimensions, in the order of the parameters and buffers.
        together: For each group, the roots of its units.
    """
    trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
    entries_of: list[list[Entry]] = [[] for _ in together]
    # The share of each parameter's elements outside of the group.
    outside: list[dict[str, float]] = [{} for _ in together]
    owner = np.full(1 + _largest_root(entries), -1)
    for g, members in enumerate(together):
        owner[members] = g
    for name, dim in dimensions:
        owners = owner[entries[name][dim]]
        counts = np.bincount(owners[owners >= 0], minlength=len(together))
        for g in np.flatnonzero(counts).tolist():
            entries_of[g].append(Entry(name, dim, int(counts[g]) // len(together[g])))
            if name in trainable:
                outside[g][name] = outside[g].get(name, 1.0) * (1 - counts[g] / len(owners))
    groups = []
    for members, along, shares in zip(together, entries_of, outside, strict=True):
        parameters = sum(round(trainable[name].numel() * (1 - share)) for name, share in shares.items())
        groups.append(Group(_layer_name(along[0].tensor), len(members), tuple(along), parameters))
    return groups


def _left_whole(
    module: nn.Module, recorder: Recorder, roots: Roots, units: Mapping[str, Mapping[int, np.ndarray]]
) -> dict[str, str]:
    """Return the layers from which not all units can be cut, each with a reason.

    Args:
        module: The traced module.
        recorder: The recorder of the trace.
        roots: The root of each label.
        units: The ID at each index, for each tensor and each of its dimensions with units.
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
