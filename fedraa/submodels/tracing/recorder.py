"""The recorder, which runs a module and computes the labels of all activations."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import nullcontext
from types import FrameType, MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from fedraa.errors import InputError
from fedraa.submodels.resize import GROUPED, RESIZED, ZERO_MAKERS, Place, find_place, name_of
from fedraa.submodels.tracing.labels import Ties, varies_along
from fedraa.submodels.tracing.nonempty_mode import NonemptyMode

_ASKS = frozenset(("allclose", "bool", "contains", "equal", "is_nonzero"))
_READS_VALUES = _ASKS | {"array", "float", "index", "int", "item", "numpy", "tolist"}

_FINDS = frozenset(("argwhere", "masked_select", "nonzero", "unique"))

# The units in a larger tensor of zeros are not followed.
_MAX_FOLLOWED_ZEROS = 2**16

Rule = Callable[["Recorder", str, Any, tuple[Any, ...], dict[str, Any]], None]


class RecordedCall(NamedTuple):
    """A call with numbers that may be widths, such as `x[:, :64]`, and the labels of its input and results."""

    module: str
    place: Place
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    before: Tensor
    after: tuple[Tensor, ...]


class DataDependentError(Exception):
    """The forward pass depends on the data, so another batch may run other code."""


class Recorder(TorchFunctionMode):
    """A torch mode in which each function also computes labels (see labels.py) for its result.

    A function without a rule excludes all units that it reads from cuts. A buffer may be cut only if it has the same
    values for all units, because a worker knows the number of kept units, but not their indices.

    Attributes:
        bound: The labels along each dimension that a layer reads, by names of parameters and buffers.
        raw: The labels of parameters and buffers that the code uses as plain tensors.
    """

    def __init__(
        self,
        module: nn.Module,
        rules: Mapping[str, Rule],
        values: nn.Module | None = None,
        *,
        fills: bool = True,
        choices: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Prepare the recording of a module.

        Args:
            module: The module to run.
            rules: Rules by name of the function.
            values: A module with the values of the buffers, needed if `module` is on the meta device.
            fills: True to run an expert of a mixture of experts on row 0 if the example assigns it no row.
            choices: For parameters with several possible dimensions of units, the one to use (default: 0).
        """
        super().__init__()
        self.found = NonemptyMode(fills)
        self.choices = dict(choices)
        # Parameters with several possible dimensions of new units.
        self.ambiguous: set[str] = set()
        self._rules = rules
        self._on_meta = values is not None
        self.ties = Ties()
        self.bound: dict[str, dict[int, Tensor]] = {}
        self.raw: dict[str, Tensor] = {}
        # The dimension of each parameter along which its layer's new units lie.
        self.unit_dims: dict[str, int] = {}
        # The reason why each of these parameters stays whole.
        self.whole: dict[str, str] = {}
        # The weights of grouped convolutions. Their groups are cut with the output channels.
        self.grouped: set[str] = set()
        # Labels after a view that may have split a cut dimension.
        self.splits: list[Tensor] = []
        self.sites: list[RecordedCall] = []
        # The last function that decided a branch by a result that depends on the data.
        self.branch_function = ""
        # The last function that searched the data, such as `nonzero`.
        self.search_function = ""
        # True if branches on data take the opposite direction.
        self.inverts_branches = False
        # The functions that ran, with their arguments.
        self.path: list[object] = []
        self._steps: MutableMapping[Tensor, int] = WeakTensorKeyDictionary()
        # Running statistics, which training estimates again.
        self.estimated: set[str] = set()
        # Parameters that the code reads without registration in the module.
        self.unregistered: dict[int, nn.Parameter] = {}
        # The original of each transposed parameter, and the order of its dimensions.
        self._turned = WeakTensorKeyDictionary()
        self._modules = {module: name for name, module in module.named_modules()}
        self._names = {id(x): name for name, x in (*module.named_parameters(), *module.named_buffers())}
        self._frozen = {name for name, x in module.named_parameters() if not x.requires_grad}
        self._alike = {name: _compare_slices(x) for name, x in (values or module).named_buffers()}
        self._labels = WeakTensorKeyDictionary()
        # Tensors that depend on inputs or parameters, and not only on buffers.
        self._data = WeakTensorKeyDictionary()
        self._hidden = WeakTensorKeyDictionary()

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if "input" in kwargs:
            args = (kwargs.pop("input"), *args)
        with torch.device("meta") if self._on_meta else nullcontext():
            out = func(*args, **kwargs)
        name = name_of(func)
        self.unregistered |= {
            id(x): x for x in iterate_tensors((args, kwargs)) if isinstance(x, nn.Parameter) and not self.name(x)
        }
        read = [
            x
            for x in iterate_tensors((args, kwargs))
            if x in self._labels or self.name(x) or isinstance(x, nn.Parameter)
        ]
        makes_tensors = any(True for _ in iterate_tensors(out))
        if name in _READS_VALUES and not makes_tensors and any(x in self._data for x in read):
            if name in _ASKS:
                self.branch_function = name
                if self.inverts_branches:
                    return not out
                return out
            raise DataDependentError(f"its forward branches on data or leaves PyTorch: it reads values by `{name}`")
        # `setitem` returns None and changes its first argument.
        changed = args[0] if name == "setitem" else out
        if read and (makes_tensors or name == "setitem"):
            try:
                self._rules.get(name, Recorder.give_up)(self, name, changed, args, kwargs)
            except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
                # The rule does not support these arguments.
                self.give_up(name, changed, args, kwargs)
            if name in RESIZED - ZERO_MAKERS and not (isinstance(out, Tensor) and out in self._turned):
                self._record_site(sys._getframe(1), name, self.labels(args[0]), out, args, kwargs)
        if name in ZERO_MAKERS and out.is_floating_point() and out.dim() > 1 and out.numel() <= _MAX_FOLLOWED_ZEROS:
            # Zeros may be the initial state of a recurrent layer.
            self.put(out, self.ties.raw(out.shape))
            self._record_site(sys._getframe(1), name, self.labels(out), out, args, kwargs)
        if read:
            self.path.append((name, *self.steps((args, kwargs))))
            self._steps.update((x, len(self.path)) for x in iterate_tensors(changed))
        if any(x in self._data or isinstance(x, nn.Parameter) for x in read):
            self._data.update((x, True) for x in iterate_tensors(changed))
            if name in _FINDS or (name == "where" and isinstance(out, tuple)):
                self.search_function = name
        return out

    def find_unused(self) -> list[str]:
        """Return the names of the trainable parameters that no function has read."""
        known = self.bound.keys() | self.raw.keys() | self.whole.keys() | self._frozen
        return [name for name in self._names.values() if name not in known and name not in self._alike]

    def steps(self, values: object) -> list[object]:
        """Return the step of the run that created each tensor in `values`, or the name of a parameter."""
        return [self.name(x) or (self._steps.get(x, 0), x.shape) for x in iterate_tensors(values)]

    def name(self, tensor: object) -> str | None:
        """Return the name of a parameter or buffer, also if it is transposed; None for other values."""
        if isinstance(tensor, Tensor) and tensor in self._turned:
            return str(self._turned[tensor][0])
        return self._names.get(id(tensor))

    def record_turned(self, tensor: Tensor, result: Tensor, dims: Sequence[int | None]) -> None:
        """Record that the code transposed, converted or sliced a parameter.

        Args:
            tensor: The parameter.
            result: The transposed, converted or sliced tensor.
            dims: For each dimension of the result, the dimension of `tensor`; None if it is new. A sliced one is
                missing.
        """
        before: Sequence[int | None] = range(tensor.dim())
        original = tensor
        if tensor in self._turned:
            _, before, original = self._turned[tensor]
        self._turned[result] = (self.name(tensor), [None if d is None else before[d] for d in dims], original)

    def labels(self, tensor: Tensor) -> Tensor:
        """Return the unit labels of a tensor, in its shape."""
        if tensor in self._hidden:
            self.ties.pin(*self._hidden[tensor])
        if tensor in self._labels:
            return torch.as_tensor(self._labels[tensor])
        if tensor in self._turned:
            return self._turned_labels(tensor)
        name = self.name(tensor)
        if name is None or name in self._frozen:
            return torch.zeros((), dtype=torch.int64).expand(tensor.shape)
        if name not in self.raw:
            alike = self._alike.get(name, (True,) * tensor.dim())
            shape = [size if same else 1 for size, same in zip(tensor.shape, alike, strict=True)]
            self.raw[name] = self.ties.raw(shape).expand(tensor.shape)
        return self.raw[name]

    def _turned_labels(self, tensor: Tensor) -> Tensor:
        _, dims, original = self._turned[tensor]
        labels = self.labels(original)
        gone = [d for d in range(labels.dim()) if d not in dims]
        labels = self.ties.tie_along(labels, gone, "the code picks some units by their index")
        labels = labels.permute([d for d in dims if d is not None] + gone)
        for _ in gone:
            labels = labels.squeeze(-1)
        for at, dim in enumerate(dims):
            if dim is None:
                labels = labels.unsqueeze(at)
        return labels.expand(tensor.shape)

    def put(self, tensor: Tensor, labels: Tensor) -> None:
        """Set the unit labels of a result: int64, in its shape."""
        if labels.shape != tensor.shape:
            raise InputError("labels", got=labels, expected=f"the shape of the result, {list(tensor.shape)}")
        if not isinstance(labels, Tensor) or labels.dtype != torch.int64:
            raise InputError("labels", got=labels, expected="a tensor of int64")
        self._labels[tensor] = labels

    def has_labels(self, tensor: Tensor) -> bool:
        return tensor in self._labels or self.name(tensor) is not None

    def hide_result(self, tensor: Tensor, labels: Tensor, reason: str) -> None:
        """Record a result that is right only if these units are not cut.

        A function that reads the result excludes the units from cuts.

        Args:
            tensor: The result.
            labels: Labels of the units.
            reason: Explanation for units that are never cut because of this result.
        """
        self.track_uncut(tensor)
        self._hidden[tensor] = (labels, reason)

    def track_input(self, tensor: Tensor) -> None:
        """Record an input of the model. It is never cut, and branches must not depend on its values."""
        self.track_uncut(tensor)
        self._data[tensor] = True

    def track_uncut(self, tensor: Tensor) -> None:
        self.put(tensor, torch.zeros((), dtype=torch.int64).expand(tensor.shape))

    def make(self, weight: Tensor, dim: int) -> Tensor:
        """Return new labels [size] for a layer's units, which lie along dimension `dim` of its weight."""
        name = self.name(weight)
        # A weight without a name is computed from other tensors.
        if name is None:
            self.ties.pin(self.labels(weight), "it is computed from other tensors")
        elif name in self._frozen:
            self.whole.setdefault(name, "it runs through a frozen parameter")
        if name is None or name in self._frozen:
            return torch.zeros(weight.size(dim), dtype=torch.int64)
        dims = self.bound.setdefault(name, {})
        if weight in self._turned:
            _, places, original = self._turned[weight]
            if places[dim] is None:
                return torch.zeros(weight.size(dim), dtype=torch.int64)
            dim, weight = places[dim], original
        if dim not in dims:
            self.unit_dims[name] = dim
            self.bind(weight, dim, self.ties.fresh(weight.size(dim)))
        return dims[dim]

    def choice(self, weight: Tensor, count: int) -> int:
        """Return which of `count` possible dimensions of a parameter has new units, from 0."""
        name = self.name(weight) or ""
        chosen = min(self.choices.get(name, 0), count - 1)
        if chosen + 1 < count:
            self.ambiguous.add(name)
        return chosen

    def bind(self, tensor: Tensor | None, dim: int, labels: Tensor) -> None:
        """Record the unit of each index along a dimension of a parameter or buffer.

        Args:
            tensor: The parameter or buffer, or None.
            dim: Its dimension.
            labels: Labels [size] of the units.
        """
        if tensor is None:
            return
        name = self.name(tensor)
        if name is None and tensor.dim() == 1:
            self.ties.tie(labels, self.labels(tensor))
            return
        if name is None:
            for computed in (labels, self.labels(tensor)):
                self.ties.pin(computed, "it is combined with a weight that is computed from other tensors")
            return
        # An einsum may broadcast a dimension of size 1.
        if len(labels) != tensor.size(dim):
            self.ties.pin(labels, "it is combined with a dimension of another size")
            return
        dims = self.bound.setdefault(name, {})
        if tensor in self._turned:
            dim = self._turned[tensor][1][dim]
            if dim is None:
                self.ties.pin(labels, "it is combined with a dimension that no parameter has")
                return
        if dim in dims:
            self.ties.tie(dims[dim], labels)
            return
        dims[dim] = labels.contiguous()
        if name in self._frozen:
            self.ties.pin(labels, "it runs through a frozen parameter")

    def give_up(self, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Exclude from cuts all units that a function reads, because it has no rule.

        Args:
            name: Name of the function.
            out: Its result.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
        """
        reason = f"`{name}` has no tracing rule"
        for x in iterate_tensors((args, kwargs)):
            owner = self.name(x)
            if owner is None or x in self._labels:
                self.ties.pin(self.labels(x), reason)
            if owner is not None:
                self.whole.setdefault(owner, reason)
        for x in iterate_tensors(out):
            self.track_uncut(x)

    def pin_unequal_buffers(self) -> None:
        """Exclude units from cuts if a buffer has different values for them. Running statistics may differ."""
        for name in sorted(self._alike.keys() & self.bound.keys() - self.estimated):
            for dim, labels in self.bound[name].items():
                if not self._alike[name][dim]:
                    self.ties.pin(labels, f"its units differ in the buffer {name}, which training does not send")

    def _record_site(
        self, frame: FrameType, name: str, before: Tensor, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Record a call with arguments that may contain widths.

        Args:
            frame: The frame that calls the torch function.
            name: Name of the function.
            before: Labels of its first argument.
            out: Its result.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
        """
        caller = find_place(frame)
        if caller is None or caller[0] not in self._modules:
            return
        if name == GROUPED or any(varies_along(before, dim) for dim in range(before.dim())):
            after = tuple(self.labels(x) for x in iterate_tensors(out))
            light = tuple(before if isinstance(x, Tensor) else x for x in args)
            self.sites.append(RecordedCall(self._modules[caller[0]], caller[1], name, light, kwargs, before, after))

    def split(self, labels: Tensor) -> None:
        """Record the labels of a view that vary along two dimensions. Only one of them can be cut."""
        if sum(varies_along(labels, d) for d in range(labels.dim())) > 1:
            self.splits.append(labels)


def iterate_tensors(value: object) -> Iterator[Tensor]:
    """Yield every tensor in nested tuples, lists, mappings, dataclasses and namespaces."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from iterate_tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from iterate_tensors(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from iterate_tensors(getattr(value, field.name, None))
    elif isinstance(value, SimpleNamespace):
        yield from iterate_tensors(vars(value))


def _compare_slices(buffer: Tensor) -> tuple[bool, ...]:
    """Return, for each dimension, True if all slices of the buffer along it are equal."""
    return tuple(size == 0 or bool((buffer == buffer.narrow(dim, 0, 1)).all()) for dim, size in enumerate(buffer.shape))
