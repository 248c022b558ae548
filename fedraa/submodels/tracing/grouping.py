"""The division of a traced module's units into width groups.

labels.py defines unit, label, tie and root label. Further words:

- Width group: units along the same dimensions of the same tensors, such as all neurons of a layer. A submodel may keep
  any of them. The width is the number of units that the submodel keeps.
- Unit ID: the number of a unit, counted group by group. An index that is never cut has the ID -1.
- Slice: the indices that a slicing call takes, such as the first 64 in `x[:, :64]`.

Example: two layers with 3 and 2 neurons, whose root labels are [1, 2, 3] and [4, 5], form two groups. The unit IDs are
[0, 1, 2] and [3, 4].
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
from fedraa.submodels.resize import GROUPED, SLICERS, Place, Resize, SizeFormula, Sizes, slice_ranges
from fedraa.submodels.traced import Entry, Group, Traced
from fedraa.submodels.tracing.labels import FIXED, Roots, compress_labels, varies_along
from fedraa.submodels.tracing.recorder import RecordedCall, Recorder

Units = dict[str, dict[int, np.ndarray]]


def group_units(module: nn.Module, recorder: Recorder) -> Traced:
    """Return the traced module with its width groups: units of the same kind, such as all neurons of a layer."""
    while True:
        _settle_ties(recorder)
        roots = recorder.ties.resolve()
        tensor_roots, slice_roots = _find_root_labels(recorder, roots), _find_slices(recorder.sized_calls, roots)
        units, groups, id_of_root = _form_groups(module, tensor_roots, slice_roots)
        sizes, rigid = _find_sizes(recorder.sized_calls, groups, partial(_find_ids, roots, id_of_root))
        if not rigid:
            break
        for call in rigid:
            recorder.ties.pin(call.before, "the code of the module fixes its width")
    names, shapes, offsets, size = flat_layout(module)
    return Traced(
        module=module,
        groups=groups,
        uncut=_explain_uncut(module, recorder, roots, units),
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
    """Return the number of the unit (unit ID) to which each label belongs, or -1 if the unit is never cut.

    Args:
        roots: Returns the root label of each label. All labels of a unit have the same root label.
        id_of_root: The unit ID of each root label.
        labels: The labels.
    """
    return np.asarray(id_of_root[np.minimum(roots(labels), len(id_of_root) - 1)])


def _settle_ties(recorder: Recorder) -> None:
    """Merge units or forbid cuts until no view and no tensor outside of layers has units in several dimensions."""
    # Element labels are those of the parameters and buffers that the code uses outside of a layer.
    ties = recorder.ties
    both = sorted(recorder.element_labels.keys() & recorder.dim_labels.keys())
    for name in both:
        if recorder.element_labels[name].dim() == 1:
            ties.tie(recorder.element_labels[name], recorder.dim_labels[name][0])
    wide = [name for name in both if recorder.element_labels[name].dim() > 1]
    reasons = dict.fromkeys(wide, "its weight is also used outside its layer") | recorder.uncut_reasons
    for name, reason in reasons.items():
        for labels in recorder.dim_labels.get(name, {}).values():
            ties.pin(labels, reason)
        if name in recorder.element_labels:
            ties.pin(recorder.element_labels[name], reason)
    while True:
        roots = ties.resolve()
        settled = True
        for labels in (*recorder.split_views, *recorder.element_labels.values()):
            resolved = torch.from_numpy(roots(labels))
            dims = [d for d in range(resolved.dim()) if varies_along(resolved, d)]
            if len(dims) > 1:
                ties.tie_along(labels, dims[:1], "a view splits the units in two dimensions")
                settled = False
        if settled:
            return


def _find_root_labels(recorder: Recorder, roots: Roots) -> Units:
    """Return the root label at each index of each dimension with units, by names of parameters and buffers.

    A root label is the number that stands for all labels of a unit.
    """
    entries = {name: {dim: roots(x) for dim, x in dims.items()} for name, dims in recorder.dim_labels.items()}
    for name, labels in recorder.element_labels.items():
        resolved = torch.from_numpy(roots(labels))
        for dim in range(resolved.dim()):
            if varies_along(resolved, dim):
                entries.setdefault(name, {})[dim] = _values_along(resolved, dim)
    return entries


def _find_slices(sized_calls: Iterable[RecordedCall], roots: Roots) -> list[np.ndarray]:
    """Return the root labels of the units in each slice that the code takes, such as `x[:, :64]`.

    The units of a slice form separate width groups.
    """
    slices = []
    for call in sized_calls:
        if call.name not in SLICERS:
            continue
        along = _find_dimension(call.before, roots)
        if along is not None:
            ranges = slice_ranges(call.name, call.args, call.kwargs, *along) or ()
            slices += [along[1][a:b] for a, b in ranges]
    return slices


def _form_groups(
    module: nn.Module, entries: Units, slices: Sequence[np.ndarray]
) -> tuple[Units, tuple[Group, ...], np.ndarray]:
    """Divide the units into width groups, and number the units.

    Args:
        module: The traced module.
        entries: For each tensor and each of its dimensions with units: the root label at each index.
        slices: The root labels in each slice that the code takes.

    Returns:
        Three values: the unit ID at each index of the dimensions in `entries`, the groups, and the unit ID of each
        root label. The ID -1 means that the unit is never cut.
    """
    order = [name for name, _ in (*module.named_parameters(), *module.named_buffers()) if name in entries]
    dimensions = [(name, dim) for name in order for dim in sorted(entries[name])]
    size = 1 + _largest_root(entries)
    # Each dimension and each slice has a random mark. The signature of a root label is the sum of the marks of all
    # dimensions and slices that contain it. Root labels with equal signatures form a group.
    signature = np.zeros(size, dtype=np.uint64)
    first = np.full(size, np.iinfo(np.int64).max)
    marks = np.random.default_rng(0).integers(1, 2**63, size=len(dimensions) + len(slices), dtype=np.uint64)
    start = 0
    for (name, dim), mark in zip(dimensions, marks, strict=False):
        root = entries[name][dim]
        signature += np.bincount(root, minlength=size).astype(np.uint64) * mark
        np.minimum.at(first, root, start + np.arange(len(root)))
        start += len(root)
    used = np.flatnonzero(signature)
    for taken, mark in zip(slices, marks[len(dimensions) :], strict=True):
        signature += np.bincount(taken[taken < size], minlength=size).astype(np.uint64) * mark
    used = used[used != FIXED]
    used = used[np.argsort(first[used], kind="stable")]

    # The last entry stands for all labels that occur in no parameter and no buffer.
    id_of_root = np.full(size + 1, -1)
    groups: list[Group] = []
    _, which, counts = np.unique(signature[used], return_inverse=True, return_counts=True)
    # A group with a single unit cannot be cut, so it is left out.
    together = [used[which == key] for key in dict.fromkeys(which.tolist()) if counts[key] > 1]
    next_id = 0
    for members, group in zip(together, _describe_groups(module, entries, dimensions, together), strict=True):
        if not group.parameters:
            # Only buffers contain these units. A cut would remove no parameter.
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
    sized_calls: Iterable[RecordedCall], groups: Sequence[Group], find_ids: Callable[[Tensor], np.ndarray]
) -> tuple[Mapping[str, Sizes], list[RecordedCall]]:
    """Return how submodels compute the sizes in the module's calls, and the slicing calls for which no formula exists.

    All calls by the same line of the code must need the same sizes. Otherwise, the result has no sizes for this line.

    Args:
        sized_calls: The recorded calls that pass a size.
        groups: The width groups.
        find_ids: Returns the unit ID of each label.
    """
    resizes: dict[tuple[str, Place], Resize | None] = {}
    rigid = []
    for call in sized_calls:
        if call.name == GROUPED:
            resize: Resize | None = Resize(-1, (), (), False)
        else:
            along = _find_dimension(call.before, find_ids)
            if along is None:
                continue
            resize = _find_resize(call, along, groups, find_ids)
        key = (call.module, call.place)
        if key in resizes:
            resize = _merge_resizes(resizes[key], resize)
        resizes[key] = resize
        if call.name in SLICERS and resize is None:
            rigid.append(call)
    sizes: dict[str, dict[Place, Resize]] = {}
    for (module, place), resize in resizes.items():
        if resize is not None and (resize.numbers or resize.dim < 0):
            sizes.setdefault(module, {})[place] = resize
    return sizes, rigid


def _merge_resizes(first: Resize | None, second: Resize | None) -> Resize | None:
    """Combine the resizes of two calls by the same line of a module's code. Return None if they do not agree.

    A resize describes how a submodel computes the sizes in a call.
    """
    if first == second:
        return first
    if first is None or second is None or not first.outs:
        return None
    common = first._replace(outs=first.outs[:1], numbers=first.numbers[:1])
    if common != second._replace(outs=second.outs[:1], numbers=second.numbers[:1]):
        return None
    return common


def _find_resize(
    call: RecordedCall, along: tuple[int, np.ndarray], groups: Sequence[Group], find_ids: Callable[[Tensor], np.ndarray]
) -> Resize | None:
    """Return how the sizes in a call follow from the widths of a submodel, or None if they do not.

    Args:
        call: The call.
        along: The dimension in which the first argument may be cut, and the unit ID at each index of this dimension.
        groups: The width groups.
        find_ids: Returns the unit ID of each label.
    """
    dim, ids = along
    if call.name in SLICERS:
        ranges = slice_ranges(call.name, call.args, call.kwargs, dim, ids)
        if ranges is None:
            return None
        return _make_resize(dim, (), [_derive_size(ids[a:b], groups) for a, b in ranges], False)
    after = _find_dimension(call.after[0], find_ids)
    if after is None:
        return None
    out, ids = after
    shape = call.after[0].shape
    sources = [_find_sources(call.before.shape, shape, d) for d in range(len(shape))]
    # A view may split a dimension into heads and the features of a head. A cut changes only the number of heads.
    inner = [d for d, dims in enumerate(sources) if d > out and dims == {dim}]
    sizes = [_derive_size(ids, groups), *(SizeFormula(shape[d], ()) for d in inner)]
    return _make_resize(dim, (out, *inner), sizes, bool(sources[out] - {dim}))


def _make_resize(dim: int, outs: tuple[int, ...], sizes: Sequence[SizeFormula | None], mixed: bool) -> Resize | None:
    """Return a Resize object with these sizes, or None if one size is unknown.

    Args:
        dim: The dimension along which the argument of the call is cut.
        outs: The dimensions of the call's result that come from the dimension `dim`.
        sizes: The sizes as functions of the widths. An unknown size is None.
        mixed: True if one size is a width multiplied by something else, for example by the number of samples.
    """
    known = tuple(size for size in sizes if size is not None)
    if len(known) < len(sizes):
        return None
    return Resize(dim, outs, known, mixed)


def _derive_size(ids: np.ndarray, groups: Sequence[Group]) -> SizeFormula | None:
    """Return the size of a dimension as a function of the widths, such as 2 * width + 1.

    `ids` has the unit ID at each index of the dimension. The result is None if the widths do not determine the size.
    """
    starts = np.cumsum([0, *(group.size for group in groups)])
    units, counts = np.unique(ids[ids >= 0], return_counts=True)
    owners = np.searchsorted(starts, units, side="right") - 1
    times = []
    for g in np.unique(owners).tolist():
        mine = counts[owners == g]
        if len(mine) != groups[g].size or len(set(mine.tolist())) > 1:
            # The units of the group do not all have the same number of indices in this dimension.
            return None
        times.append((g, int(mine[0])))
    return SizeFormula(int((ids < 0).sum()), tuple(times))


def _find_sources(before: Sequence[int], after: Sequence[int], out: int) -> set[int]:
    """Return the input dimensions in a view's dimension `out`. If [2, 3, 4] becomes [2, 12], dimension 1 has {1, 2}."""
    if math.prod(before) != math.prod(after):
        # A view has as many elements as its input, so this call is no view.
        return set()
    elements = np.arange(after[out]) * math.prod(after[out + 1 :])
    return {d for d, index in enumerate(np.unravel_index(elements, tuple(before))) if index.any()}


def _find_dimension(labels: Tensor, find_units: Callable[[Tensor], np.ndarray]) -> tuple[int, np.ndarray] | None:
    """Return the dimension along which the units differ, and the unit at each index of this dimension.

    `find_units` returns the root label or the unit ID of each label. The result is None if the units differ along no
    dimension or along several dimensions.
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
    """Return the width groups with their names, dimensions and numbers of parameters.

    Args:
        module: The traced module.
        entries: For each tensor and each of its dimensions with units: the root label at each index.
        dimensions: The tensors and dimensions of `entries`, in the order of the parameters and buffers.
        together: The root labels of each group's units.
    """
    trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
    entries_of: list[list[Entry]] = [[] for _ in together]
    # For each group and each parameter name: the fraction of the parameter's elements outside of the group.
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


def _explain_uncut(
    module: nn.Module, recorder: Recorder, roots: Roots, units: Mapping[str, Mapping[int, np.ndarray]]
) -> dict[str, str]:
    """Return, by layer, the reason why the layer cannot be cut or can be cut only in part.

    Args:
        module: The traced module.
        recorder: The recorder of the trace.
        roots: Returns the root label of each label. All labels of a unit have the same root label.
        units: For each tensor and each of its dimensions with units: the unit ID at each index.
    """
    uncut = {}
    for name, _ in module.named_parameters():
        dim = recorder.unit_dims.get(name)
        layer = _layer_name(name)
        if dim is not None:
            labels = recorder.dim_labels[name][dim]
            fixed = units.get(name, {}).get(dim, np.full(len(labels), -1)) < 0
            if fixed.any():
                fate = "stays whole" if fixed.all() else "is cut in part"
                reason = recorder.ties.reason(labels[torch.from_numpy(fixed)], roots)
                uncut[layer] = f"{layer} {fate}: {reason}."
        elif name not in units and name in recorder.uncut_reasons:
            uncut[layer] = f"{layer} stays whole: {recorder.uncut_reasons[name]}."
        elif name not in units and name in recorder.element_labels and recorder.element_labels[name].numel() > 1:
            uncut[layer] = f"{layer} stays whole: {recorder.ties.reason(recorder.element_labels[name], roots)}."
    return uncut


def _layer_name(parameter: str) -> str:
    return parameter.removesuffix(".weight").removesuffix(".in_proj_weight")
