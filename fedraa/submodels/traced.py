"""A module with known width groups, which can be cut into smaller modules."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import nn

from fedraa.errors import InputError, suggest_closest
from fedraa.submodels.cost import Cost
from fedraa.submodels.cutting import shrink_module
from fedraa.submodels.flat import copy_structure, frozen_parameters, layer_of
from fedraa.submodels.parametrized import pack_module, unpack_module
from fedraa.submodels.resize import Sizes, find_cut_numbers

IndexSet = tuple[np.ndarray, ...]
"""One sorted int64 array of kept units per group, in the order of `Traced.groups`."""

# Reasons are part of a sentence in error messages, so they must be short.
_MAX_REASON_LENGTH = 200

# A cached flat index takes up to twice the memory of the model's parameters.
_MAX_CACHED_INDICES = 8


@dataclass(frozen=True)
class Entry:
    """A dimension of a tensor along which a group's units lie. Each unit has `block` indices along it."""

    tensor: str
    dim: int
    block: int


@dataclass(frozen=True)
class Group:
    """A width group: units of the same kind that can be cut, such as all neurons of a layer.

    Attributes:
        entries: The dimensions of tensors along which the units lie.
        parameters: Number of trainable parameters that belong to the units.
    """

    name: str
    size: int
    entries: tuple[Entry, ...]
    parameters: int


@dataclass(frozen=True, eq=False)
class Traced:
    """A module with its width groups, which `trace_module` has found.

    Attributes:
        module: A private copy of the full module. In a run it has no weights, because flat vectors hold them.
        groups: The width groups, in the order of the parameters.
        uncut: A sentence for each layer that stays whole or can be cut only in part. The sentence gives the reason.
        names, shapes, offsets: The names, shapes and first indices of the trainable parameters in the flat float32
            vector, in the order of `named_parameters`.
        size: Length `d` of the flat vector.
        units: The unit ID at each index of each tensor and dimension that can be cut. IDs are unique over all groups.
            An index that is always kept has the ID -1.
        grouped: Names of the weights of grouped convolutions. A cut removes whole groups of channels.
        estimated: Names of running statistics. Training estimates them again, because a worker uses one module for
            several submodels.
        sizes: The sizes in the code of each module that a cut must change.
        by_piece: True if each parameter may be updated before the gradients of other parameters are computed.
        costs: A cache of measured costs, by the widths of the submodel and the shape of the example.
    """

    module: nn.Module
    groups: tuple[Group, ...]
    uncut: Mapping[str, str]
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    size: int
    units: Mapping[str, Mapping[int, np.ndarray]]
    grouped: frozenset[str]
    estimated: frozenset[str] = frozenset()
    sizes: Mapping[str, Sizes] = field(default_factory=dict)
    by_piece: bool = True
    costs: dict[tuple[tuple[int, ...], tuple[int, ...]], Cost] = field(default_factory=dict, init=False, repr=False)
    _flat: OrderedDict[tuple[bytes, ...], np.ndarray] = field(default_factory=OrderedDict, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_flat": OrderedDict(), "module": pack_module(self.module)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"module": unpack_module(state["module"])})

    @property
    def places(self) -> dict[str, slice]:
        """The slice of the flat vector that each trainable parameter takes, by the parameter's name."""
        ends = (*self.offsets[1:], self.size)
        return {name: slice(*span) for name, *span in zip(self.names, self.offsets, ends, strict=True)}

    def mask_of(self, names: Collection[str]) -> np.ndarray:
        """Return a mask [d] that is True for the parameters with these names."""
        mask = np.zeros(self.size, bool)
        for name, place in self.places.items():
            mask[place] = name in names
        return mask

    def uncut_layers(self) -> np.ndarray:
        """Return a mask [d] that is True for the parameters of layers that no width group cuts, except embeddings."""
        left_out = {layer_of(entry.tensor) for group in self.groups for entry in group.entries} | self.embeddings()
        return self.mask_of([name for name in self.names if layer_of(name) not in left_out])

    def embeddings(self) -> set[str]:
        """Return the names of the embedding layers."""
        layers = self.module.named_modules()
        return {name for name, layer in layers if isinstance(layer, nn.Embedding | nn.EmbeddingBag)}

    @property
    def is_recurrent(self) -> bool:
        """True if the module has a recurrent layer, such as `nn.LSTM` or `nn.GRUCell`."""
        return any(isinstance(layer, nn.RNNBase | nn.RNNCellBase) for layer in self.module.modules())

    def full(self) -> IndexSet:
        """Return the index set of the whole module."""
        return tuple(np.arange(group.size) for group in self.groups)

    def match_groups(self, patterns: Sequence[str]) -> Traced:
        """Return the traced module with only the width groups that match a pattern.

        Args:
            patterns: Names of groups, names of modules that contain groups, or `fnmatch` patterns of group names.

        Raises:
            InputError: A pattern matches no group.
        """
        names = [group.name for group in self.groups]
        kept: set[str] = set()
        for pattern in patterns:
            chosen = {name for name in names if fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")}
            if not chosen:
                expected = f"names or patterns of layers that can be cut: {', '.join(names)}"
                raise InputError("cut_layers", got=pattern, expected=expected, hint=suggest_closest(pattern, names))
            kept |= chosen
        return self.keep_groups(kept, "it is not in cut_layers")

    def keep_groups(self, kept: Collection[str], reason: str) -> Traced:
        """Return the traced module with only some of its width groups. Layers of other groups are never cut.

        Args:
            kept: The names of the groups to keep.
            reason: The reason for which the layers of other groups stay whole.
        """
        names = [group.name for group in self.groups]
        is_kept = [name in kept for name in names]
        unit_number, group_number = self._renumber(is_kept)
        units = {
            tensor: {dim: unit_number[line] for dim, line in dims.items() if (unit_number[line] >= 0).any()}
            for tensor, dims in self.units.items()
        }
        full = [group.size for group in self.groups]
        return replace(
            self,
            groups=tuple(group for group in self.groups if group.name in kept),
            uncut={
                **self.uncut,
                **{name: f"{name} stays whole: {reason}." for name in names if name not in kept},
            },
            units={tensor: dims for tensor, dims in units.items() if dims},
            grouped=frozenset(tensor for tensor in self.grouped if units.get(tensor)),
            sizes={
                module: {place: resize.keep_groups(group_number, full) for place, resize in places.items()}
                for module, places in self.sizes.items()
            },
        )

    def _renumber(self, is_kept: Sequence[bool]) -> tuple[np.ndarray, dict[int, int]]:
        """Return the new ID of each unit, and the new numbers of the groups whose units can still be cut (`is_kept`).

        Units of other groups get the ID -1. The array ends with an extra -1: indexing with the old ID -1 gives -1.
        """
        owners = np.repeat(is_kept, [group.size for group in self.groups])
        numbers = np.where(owners, np.cumsum(owners) - 1, -1)
        kept_groups = np.flatnonzero(is_kept).tolist()
        return np.append(numbers, -1), {old: new for new, old in enumerate(kept_groups)}

    def explain_uncut(self) -> str:
        """Return a text with the one or two most frequent reasons why layers cannot be cut."""
        counts = Counter(sentence.partition(": ")[2].rstrip(".") for sentence in self.uncut.values())
        reasons = [f"{reason} ({count} x)" for reason, count in counts.most_common(2)]
        if not reasons:
            return "it has no hidden units"
        text = "; ".join(reasons)
        if len(text) > _MAX_REASON_LENGTH:
            return reasons[0][:_MAX_REASON_LENGTH]
        return text

    def widths(self, indices: IndexSet) -> tuple[int, ...]:
        """Return the number of units that an index set keeps in each group."""
        return tuple(len(kept) for kept in self.check(indices))

    def mean_width_share(self, widths: tuple[int, ...]) -> float:
        """Return the fraction of units that a submodel keeps, averaged over the groups. Without groups, return 1.

        If all groups are cut equally, this fraction is HeteroFL's model rate.
        """
        if not widths:
            return 1.0
        shares = [kept / group.size for kept, group in zip(widths, self.groups, strict=True)]
        return sum(shares) / len(shares)

    def cut(self, indices: IndexSet) -> nn.Module:
        """Return a dense module with only the kept units.

        The new module shares frozen parameters with the full module and copies all others. Buffers with a value per
        unit, such as running statistics, are also cut. Raises InputError if the index set does not fit the groups.
        """
        sizes = find_cut_numbers(self.sizes, self.widths(indices), [group.size for group in self.groups])
        return shrink_module(self.module, self._find_kept(indices), self.grouped, sizes)

    def make_skeleton(self, widths: Sequence[int]) -> nn.Module:
        """Return a module with these widths. It can load the weights of every submodel with the same widths.

        The modules of all submodels with these widths are equal, except for the values of trained parameters and of
        running statistics. Training estimates the statistics again.
        """
        return self.cut(tuple(np.arange(width) for width in widths))

    def make_full_skeleton(self) -> nn.Module:
        """Return a module with the widths of the whole model, which can load the weights of the whole model."""
        return self.make_skeleton(self.widths(self.full()))

    def on(self, device: torch.device) -> Traced:
        """Return a copy with its frozen parameters on the device. All submodels share these parameters."""
        module = copy_structure(self.module)
        for p in frozen_parameters(module):
            p.data = p.data.to(device)
        return replace(self, module=module)

    def count(self, indices: IndexSet) -> int:
        """Return the number of trainable parameters of a submodel."""
        kept = self._find_kept(indices)
        return sum(
            math.prod(len(kept.get(name, {}).get(dim, range(size))) for dim, size in enumerate(shape))
            for name, shape in zip(self.names, self.shapes, strict=True)
        )

    def flat_index(self, indices: IndexSet) -> np.ndarray:
        """Return the indices of a submodel's parameters in the full flat vector: int64 [k].

        `theta[flat_index]` is the submodel's flat vector. Results are cached and read-only.
        """
        key = tuple(kept.tobytes() for kept in self.check(indices))
        if key in self._flat:
            self._flat.move_to_end(key)
            return self._flat[key]
        kept = self._find_kept(indices)
        parts = []
        for name, shape, offset in zip(self.names, self.shapes, self.offsets, strict=True):
            place = np.full((1,) * len(shape), offset)
            for dim, size in enumerate(shape):
                index = kept.get(name, {}).get(dim, np.arange(size))
                along = index * math.prod(shape[dim + 1 :])
                place = place + along.reshape(-1, *(1,) * (len(shape) - dim - 1))
            parts.append(place.reshape(-1))
        flat = np.concatenate([np.zeros(0, np.int64), *parts])
        flat.flags.writeable = False
        self._flat[key] = flat
        while len(self._flat) > _MAX_CACHED_INDICES:
            self._flat.popitem(last=False)
        return flat

    def check(self, indices: IndexSet) -> IndexSet:
        """Return the index set as int64 arrays. Raises InputError if the index set does not fit the groups."""
        if len(indices) != len(self.groups):
            problem = f"there are {len(indices)} arrays"
            raise InputError("indices", problem, expected=f"one per group, {len(self.groups)} in all")
        arrays = tuple(map(np.asarray, indices))
        for group, kept in zip(self.groups, arrays, strict=True):
            if not kept.size:
                raise InputError(f"indices of group {group.name!r}", got=[], expected="one unit or more")
            is_ascending = kept.ndim == 1 and kept.dtype.kind in "iu" and (kept[1:] > kept[:-1]).all()
            if not is_ascending or kept[0] < 0 or kept[-1] >= group.size:
                expected = f"ascending numbers of units from 0 to {group.size - 1}"
                raise InputError(f"indices of group {group.name!r}", got=kept.tolist(), expected=expected)
        return tuple(kept.astype(np.int64, copy=False) for kept in arrays)

    def _find_kept(self, indices: IndexSet) -> dict[str, dict[int, np.ndarray]]:
        present = np.zeros(sum(group.size for group in self.groups) + 1, dtype=bool)
        # The ID -1 marks indices that are always kept.
        present[-1] = True
        start = 0
        for group, kept in zip(self.groups, self.check(indices), strict=True):
            present[start + kept] = True
            start += group.size
        return {
            tensor: {dim: np.flatnonzero(present[units]) for dim, units in dims.items()}
            for tensor, dims in self.units.items()
        }
