"""The recorder: it runs a module and computes the labels of all activations. labels.py explains labels."""

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

# A tensor of zeros with more elements than this gets no labels.
_MAX_FOLLOWED_ZEROS = 2**16

Rule = Callable[["Recorder", str, Any, tuple[Any, ...], dict[str, Any]], None]


class RecordedCall(NamedTuple):
    """A call with a size, such as `x[:, :64]`. The first argument has the labels `before`, the results `after`."""

    module: str
    place: Place
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    before: Tensor
    after: tuple[Tensor, ...]


class DataDependentError(Exception):
    """The data decide which code the forward pass runs, so another batch may run other code."""


class Recorder(TorchFunctionMode):
    """A torch mode in which each function also computes the unit labels of its result.

    If a function has no rule, the units that it reads are never cut. A buffer can be cut only if its values are equal
    for all units, because a worker knows only how many units its submodel keeps, not which ones.

    Attributes:
        dim_labels: The labels along each dimension that a layer reads, by names of parameters and buffers.
        element_labels: The labels of each parameter and buffer that the code uses as a plain tensor.
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
            choices: By parameter name, an index (from 0) into the possible dimensions of its units. The default is 0.
        """
        super().__init__()
        self.found = NonemptyMode(fills)
        self.choices = dict(choices)
        # Names of the parameters for which it is uncertain along which dimension the units lie.
        self.ambiguous: set[str] = set()
        self._rules = rules
        self._on_meta = values is not None
        self.ties = Ties()
        self.dim_labels: dict[str, dict[int, Tensor]] = {}
        self.element_labels: dict[str, Tensor] = {}
        # For each weight, the dimension along which the output units of its layer lie.
        self.unit_dims: dict[str, int] = {}
        # For each parameter that is never cut, the reason.
        self.uncut_reasons: dict[str, str] = {}
        # The weights of grouped convolutions. A cut removes whole groups of channels.
        self.grouped: set[str] = set()
        # The labels of each view that splits one dimension into two dimensions. Only one of the two can be cut.
        self.split_views: list[Tensor] = []
        self.sized_calls: list[RecordedCall] = []
        # The last function whose result depends on data and decided a branch.
        self.branch_function = ""
        # The last function that searched the data, such as `nonzero`.
        self.search_function = ""
        # True to reverse every branch that depends on data.
        self.inverts_branches = False
        # The functions that ran, each with the origin of its arguments.
        self.path: list[object] = []
        self._steps: MutableMapping[Tensor, int] = WeakTensorKeyDictionary()
        # Names of running statistics. They are estimated again before each evaluation.
        self.estimated: set[str] = set()
        # For each tensor that the code transposed, converted or sliced from a parameter: the parameter's name, the
        # parameter's dimension for each dimension of the tensor, and the parameter itself.
        self._derived = WeakTensorKeyDictionary()
        self._modules = {module: name for name, module in module.named_modules()}
        self._names = {id(x): name for name, x in (*module.named_parameters(), *module.named_buffers())}
        self._frozen = {name for name, x in module.named_parameters() if not x.requires_grad}
        self._alike = {name: _compare_slices(x) for name, x in (values or module).named_buffers()}
        self._labels = WeakTensorKeyDictionary()
        # Tensors that depend on inputs or parameters. Tensors that depend only on buffers are not included.
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
            if name in RESIZED - ZERO_MAKERS and not (isinstance(out, Tensor) and out in self._derived):
                self._record_sized_call(sys._getframe(1), name, self.labels(args[0]), out, args, kwargs)
        if name in ZERO_MAKERS and out.is_floating_point() and out.dim() > 1 and out.numel() <= _MAX_FOLLOWED_ZEROS:
            # Zeros may be the initial state of a recurrent layer.
            self.put(out, self.ties.label_elements(out.shape))
            self._record_sized_call(sys._getframe(1), name, self.labels(out), out, args, kwargs)
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
        known = self.dim_labels.keys() | self.element_labels.keys() | self.uncut_reasons.keys() | self._frozen
        return [name for name in self._names.values() if name not in known and name not in self._alike]

    def steps(self, values: object) -> list[object]:
        """Return an entry for each tensor in `values`: its name, or (number of the call that made it, shape)."""
        return [self.name(x) or (self._steps.get(x, 0), x.shape) for x in iterate_tensors(values)]

    def name(self, tensor: object) -> str | None:
        """Return the name of a parameter or buffer, even if it was transposed. Other values give None."""
        if isinstance(tensor, Tensor) and tensor in self._derived:
            return str(self._derived[tensor][0])
        return self._names.get(id(tensor))

    def record_derived(self, tensor: Tensor, result: Tensor, dims: Sequence[int | None]) -> None:
        """Record that the code transposed, converted or sliced a parameter.

        Args:
            tensor: The parameter.
            result: The transposed, converted or sliced tensor.
            dims: For each dimension of the result, the dimension of `tensor` from which it comes. None marks a new
                dimension.
        """
        before: Sequence[int | None] = range(tensor.dim())
        original = tensor
        if tensor in self._derived:
            _, before, original = self._derived[tensor]
        self._derived[result] = (self.name(tensor), [None if d is None else before[d] for d in dims], original)

    def labels(self, tensor: Tensor) -> Tensor:
        """Return the unit label of each element of a tensor. The result has the shape of the tensor."""
        if tensor in self._hidden:
            self.ties.pin(*self._hidden[tensor])
        if tensor in self._labels:
            return torch.as_tensor(self._labels[tensor])
        if tensor in self._derived:
            return self._derived_labels(tensor)
        name = self.name(tensor)
        if name is None or name in self._frozen:
            return torch.zeros((), dtype=torch.int64).expand(tensor.shape)
        if name not in self.element_labels:
            alike = self._alike.get(name, (True,) * tensor.dim())
            shape = [size if same else 1 for size, same in zip(tensor.shape, alike, strict=True)]
            self.element_labels[name] = self.ties.label_elements(shape).expand(tensor.shape)
        return self.element_labels[name]

    def _derived_labels(self, tensor: Tensor) -> Tensor:
        _, dims, original = self._derived[tensor]
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
        """Set the unit label of each element of a result. The labels are int64 and have the result's shape."""
        if labels.shape != tensor.shape:
            raise InputError("labels", got=labels, expected=f"the shape of the result, {list(tensor.shape)}")
        if not isinstance(labels, Tensor) or labels.dtype != torch.int64:
            raise InputError("labels", got=labels, expected="a tensor of int64")
        self._labels[tensor] = labels

    def has_labels(self, tensor: Tensor) -> bool:
        return tensor in self._labels or self.name(tensor) is not None

    def hide_result(self, tensor: Tensor, labels: Tensor, reason: str) -> None:
        """Record a result that would be wrong if some units were cut.

        If any function reads the result, these units are never cut.

        Args:
            tensor: The result.
            labels: Labels of these units.
            reason: The explanation for users if a function reads the result.
        """
        self.track_uncut(tensor)
        self._hidden[tensor] = (labels, reason)

    def track_input(self, tensor: Tensor) -> None:
        """Record an input of the model. An input is never cut. Branches must not depend on its values."""
        self.track_uncut(tensor)
        self._data[tensor] = True

    def track_uncut(self, tensor: Tensor) -> None:
        self.put(tensor, torch.zeros((), dtype=torch.int64).expand(tensor.shape))

    def make_units(self, weight: Tensor, dim: int) -> Tensor:
        """Return a new label for each of a layer's units, which lie along dimension `dim` of its weight."""
        name = self.name(weight)
        # A weight without a name is computed from other tensors.
        if name is None:
            self.ties.pin(self.labels(weight), "it is computed from other tensors")
        elif name in self._frozen:
            self.uncut_reasons.setdefault(name, "it runs through a frozen parameter")
        if name is None or name in self._frozen:
            return torch.zeros(weight.size(dim), dtype=torch.int64)
        dims = self.dim_labels.setdefault(name, {})
        if weight in self._derived:
            _, places, original = self._derived[weight]
            if places[dim] is None:
                return torch.zeros(weight.size(dim), dtype=torch.int64)
            dim, weight = places[dim], original
        if dim not in dims:
            self.unit_dims[name] = dim
            self.bind_units(weight, dim, self.ties.label_units(weight.size(dim)))
        return dims[dim]

    def choose_dim(self, weight: Tensor, count: int) -> int:
        """Choose a dimension for a parameter's units from `count` possible dimensions, and return its index from 0."""
        name = self.name(weight) or ""
        chosen = min(self.choices.get(name, 0), count - 1)
        if chosen + 1 < count:
            self.ambiguous.add(name)
        return chosen

    def bind_units(self, tensor: Tensor | None, dim: int, labels: Tensor) -> None:
        """Record the unit to which each index along a dimension of a parameter or buffer belongs.

        Args:
            tensor: The parameter or buffer. None has no effect.
            dim: The dimension.
            labels: The label at each index, [size].
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
        dims = self.dim_labels.setdefault(name, {})
        if tensor in self._derived:
            dim = self._derived[tensor][1][dim]
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
        """Record that the units that a function reads are never cut, because the function has no rule.

        Args:
            name: Name of the function.
            out: Result of the function.
            args: Positional arguments of the function.
            kwargs: Keyword arguments of the function.
        """
        reason = f"`{name}` has no tracing rule"
        for x in iterate_tensors((args, kwargs)):
            owner = self.name(x)
            if owner is None or x in self._labels:
                self.ties.pin(self.labels(x), reason)
            if owner is not None:
                self.uncut_reasons.setdefault(owner, reason)
        for x in iterate_tensors(out):
            self.track_uncut(x)

    def pin_unequal_buffers(self) -> None:
        """Prevent cuts of units for which a buffer has different values. Running statistics are ignored."""
        for name in sorted(self._alike.keys() & self.dim_labels.keys() - self.estimated):
            for dim, labels in self.dim_labels[name].items():
                if not self._alike[name][dim]:
                    self.ties.pin(labels, f"its units differ in the buffer {name}, which training does not send")

    def _record_sized_call(
        self, frame: FrameType, name: str, before: Tensor, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Record a call whose arguments may contain a size that a cut changes.

        Args:
            frame: The frame that calls the torch function.
            name: Name of the function.
            before: Labels of the first argument.
            out: Result of the function.
            args: Positional arguments of the function.
            kwargs: Keyword arguments of the function.
        """
        caller = find_place(frame)
        if caller is None or caller[0] not in self._modules:
            return
        if name == GROUPED or any(varies_along(before, dim) for dim in range(before.dim())):
            after = tuple(self.labels(x) for x in iterate_tensors(out))
            light = tuple(before if isinstance(x, Tensor) else x for x in args)
            self.sized_calls.append(
                RecordedCall(self._modules[caller[0]], caller[1], name, light, kwargs, before, after)
            )

    def record_view(self, labels: Tensor) -> None:
        """Record the labels of a view if they vary along two dimensions. Only one of the two dimensions can be cut."""
        if sum(varies_along(labels, d) for d in range(labels.dim())) > 1:
            self.split_views.append(labels)


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
    """Return one bool per dimension of a buffer: True if all slices along the dimension are equal."""
    return tuple(size == 0 or bool((buffer == buffer.narrow(dim, 0, 1)).all()) for dim, size in enumerate(buffer.shape))
