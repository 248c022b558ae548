"""Run a module once and follow which unit every element of every activation belongs to."""

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
from fedraa.submodels.resize import GROUPED, MADE, RESIZED, Place, name_of, place
from fedraa.submodels.tracing.found import Found
from fedraa.submodels.tracing.labels import Ties, varies

_ASKS = frozenset(("allclose", "bool", "contains", "equal", "is_nonzero"))
_READS_VALUES = _ASKS | {"array", "float", "index", "int", "item", "numpy", "tolist"}

_FINDS = frozenset(("argwhere", "masked_select", "nonzero", "unique"))

_STATES = 2**16  # numbers that zeros may have to be followed

Rule = Callable[["Recorder", str, Any, tuple[Any, ...], dict[str, Any]], None]


class Site(NamedTuple):
    """A call that may state widths: where it is, its arguments, and the labels of the first and of the results."""

    module: str
    place: Place
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    before: Tensor
    after: tuple[Tensor, ...]


class DataDependentError(Exception):
    """The forward pass read a value of its data: another batch might take another path, other code might change it."""


class Recorder(TorchFunctionMode):
    """While it is active, every torch function that runs also acts on the labels of its arguments.

    `bound[tensor name][dim]` holds the labels along the dimensions of parameters and buffers that a layer
    reads, `raw[tensor name]` the labels of parameters and buffers used as plain tensors. A function without a
    rule fixes whatever it reads. A buffer may run through units only where it is the same for all of them: a
    worker knows how many units it has, not which.
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
        """Tensors are on the meta device if `values` has the buffers of the module instead.

        Of parameters that could make units along several dimensions `choices` says which does, the first if it is not
        told. Experts run that get no rows if it `fills` what they get.
        """
        super().__init__()
        self.found = Found(fills)
        self.choices = dict(choices)
        self.open: set[str] = set()  # parameters that could make units along yet another dimension
        self._rules = rules
        self._on_meta = values is not None
        self.ties = Ties()
        self.bound: dict[str, dict[int, Tensor]] = {}
        self.raw: dict[str, Tensor] = {}
        self.made: dict[str, int] = {}  # parameters that make units, and along which dimension
        self.whole: dict[str, str] = {}  # parameters that reached a function without a rule
        self.grouped: set[str] = set()  # convolutions whose own groups are cut with their output channels
        self.splits: list[Tensor] = []  # labels after a view that may have split one cut dimension in two
        self.sites: list[Site] = []
        self.asked = ""  # the last function by which the code asked something of its data
        self.finds = ""  # the last function by which the code asked where its data are such or such
        self.deny = False  # whether such questions get the other answer
        self.path: list[object] = []  # what ran, on what
        self._steps: MutableMapping[Tensor, int] = WeakTensorKeyDictionary()
        self.estimated: set[str] = set()  # running statistics that training estimates anew
        self.strange: dict[int, nn.Parameter] = {}  # parameters that are not the module's
        self._turned = WeakTensorKeyDictionary()  # transposed parameters: whose, and which dimension is where
        self._modules = {module: name for name, module in module.named_modules()}
        self._names = {id(x): name for name, x in (*module.named_parameters(), *module.named_buffers())}
        self._frozen = {name for name, x in module.named_parameters() if not x.requires_grad}
        self._alike = {name: _alike(x) for name, x in (values or module).named_buffers()}
        self._labels = WeakTensorKeyDictionary()
        self._data = WeakTensorKeyDictionary()  # what depends on inputs or parameters, and not on buffers alone
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
        self.strange |= {id(x): x for x in tensors((args, kwargs)) if isinstance(x, nn.Parameter) and not self.name(x)}
        read = [x for x in tensors((args, kwargs)) if x in self._labels or self.name(x) or isinstance(x, nn.Parameter)]
        makes_tensors = any(True for _ in tensors(out))
        if name in _READS_VALUES and not makes_tensors and any(x in self._data for x in read):
            if name in _ASKS:
                self.asked = name
                return not out if self.deny else out
            raise DataDependentError(f"its forward branches on data or leaves PyTorch: it reads values by `{name}`")
        changed = args[0] if name == "setitem" else out  # which returns nothing and changes its first argument
        if read and (makes_tensors or name == "setitem"):
            try:
                self._rules.get(name, Recorder.give_up)(self, name, changed, args, kwargs)
            except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):  # called in an unknown way
                self.give_up(name, changed, args, kwargs)
            if name in RESIZED - MADE and not (isinstance(out, Tensor) and out in self._turned):
                self._note(sys._getframe(1), name, self.labels(args[0]), out, args, kwargs)
        if name in MADE and out.is_floating_point() and out.dim() > 1 and out.numel() <= _STATES:
            self.put(out, self.ties.raw(out.shape))  # such as the first state of a recurrent layer: whose shows in use
            self._note(sys._getframe(1), name, self.labels(out), out, args, kwargs)
        if read:
            self.path.append((name, *self.steps((args, kwargs))))
            self._steps.update((x, len(self.path)) for x in tensors(changed))
        if any(x in self._data or isinstance(x, nn.Parameter) for x in read):
            self._data.update((x, True) for x in tensors(changed))
            if name in _FINDS or (name == "where" and isinstance(out, tuple)):
                self.finds = name
        return out

    def unused(self) -> list[str]:
        """Trained parameters that no function read."""
        known = self.bound.keys() | self.raw.keys() | self.whole.keys() | self._frozen
        return [name for name in self._names.values() if name not in known and name not in self._alike]

    def steps(self, values: object) -> list[object]:
        """From where on the path tensors are: parameters by their names."""
        return [self.name(x) or (self._steps.get(x, 0), x.shape) for x in tensors(values)]

    def name(self, tensor: object) -> str | None:
        """The name of a parameter or buffer of the module, transposed or not; None for any other value."""
        if isinstance(tensor, Tensor) and tensor in self._turned:
            return str(self._turned[tensor][0])
        return self._names.get(id(tensor))

    def turn(self, tensor: Tensor, result: Tensor, dims: Sequence[int | None]) -> None:
        """A parameter is transposed or converted: dimension i of the result is `dims[i]` of the tensor, None if new.

        Of a dimension that is not in the result, one slice was taken, or several along a new one.
        """
        before = self._turned[tensor][1] if tensor in self._turned else range(tensor.dim())
        original = self._turned[tensor][2] if tensor in self._turned else tensor
        self._turned[result] = (self.name(tensor), [None if d is None else before[d] for d in dims], original)

    def labels(self, tensor: Tensor) -> Tensor:
        """The labels of a tensor, of its shape."""
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
        labels = self.ties.span(labels, gone, "some of them are picked by position")
        labels = labels.permute([d for d in dims if d is not None] + gone)
        for _ in gone:
            labels = labels.squeeze(-1)
        for at, dim in enumerate(dims):
            labels = labels.unsqueeze(at) if dim is None else labels
        return labels.expand(tensor.shape)

    def put(self, tensor: Tensor, labels: Tensor) -> None:
        """Set the labels of a result."""
        if labels.shape != tensor.shape:
            raise InputError("labels", got=labels, expected=f"the shape of the result, {list(tensor.shape)}")
        if not isinstance(labels, Tensor) or labels.dtype != torch.int64:
            raise InputError("labels", got=labels, expected="a tensor of int64")
        self._labels[tensor] = labels

    def follows(self, tensor: Tensor) -> bool:
        """Whether its labels are known."""
        return tensor in self._labels or self.name(tensor) is not None

    def hide(self, tensor: Tensor, labels: Tensor, reason: str) -> None:
        """A result that is right only while these units are whole: pin them if anything reads it."""
        self.track(tensor)
        self._hidden[tensor] = (labels, reason)

    def feed(self, tensor: Tensor) -> None:
        """Follow the model's input: it is never cut, and the forward pass may not depend on its values."""
        self.track(tensor)
        self._data[tensor] = True

    def track(self, tensor: Tensor) -> None:
        """Follow a tensor none of whose elements is ever cut."""
        self.put(tensor, torch.zeros((), dtype=torch.int64).expand(tensor.shape))

    def make(self, weight: Tensor, dim: int) -> Tensor:
        """The labels `[size]` of the units that a layer makes along `dim` of its weight."""
        name = self.name(weight)
        if name is None:  # computed from other tensors, so its rows are nobody's units
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
            self.made[name] = dim
            self.bind(weight, dim, self.ties.fresh(weight.size(dim)))
        return dims[dim]

    def choice(self, weight: Tensor, count: int) -> int:
        """Which of so many dimensions of a parameter makes units."""
        name = self.name(weight) or ""
        chosen = min(self.choices.get(name, 0), count - 1)
        if chosen + 1 < count:
            self.open.add(name)
        return chosen

    def bind(self, tensor: Tensor | None, dim: int, labels: Tensor) -> None:
        """Dimension `dim` of a parameter or buffer runs through these units (`labels` `[size]`)."""
        if tensor is None:
            return
        name = self.name(tensor)
        if name is None and tensor.dim() == 1:
            self.ties.tie(labels, self.labels(tensor))
            return
        if name is None:
            for computed in (labels, self.labels(tensor)):
                self.ties.pin(computed, "it meets a weight that is computed from other tensors")
            return
        if len(labels) != tensor.size(dim):  # as in an equation with a dimension of size 1
            self.ties.pin(labels, "it meets a dimension of another size")
            return
        dims = self.bound.setdefault(name, {})
        if tensor in self._turned:
            dim = self._turned[tensor][1][dim]
            if dim is None:
                self.ties.pin(labels, "it meets a dimension that no parameter has")
                return
        if dim in dims:
            self.ties.tie(dims[dim], labels)
            return
        dims[dim] = labels.contiguous()
        if name in self._frozen:
            self.ties.pin(labels, "it runs through a frozen parameter")

    def give_up(self, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A function without a rule: all that it reads stays whole."""
        reason = f"`{name}` is not a function that can be cut"
        for x in tensors((args, kwargs)):
            owner = self.name(x)
            if owner is None or x in self._labels:
                self.ties.pin(self.labels(x), reason)
            if owner is not None:
                self.whole.setdefault(owner, reason)
        for x in tensors(out):
            self.track(x)

    def hold_buffers(self) -> None:
        """Pin the units that a layer's buffer tells apart; running statistics of those that stay are estimated."""
        for name in sorted(self._alike.keys() & self.bound.keys() - self.estimated):
            for dim, labels in self.bound[name].items():
                if not self._alike[name][dim]:
                    self.ties.pin(labels, f"its units differ in the buffer {name}, which training does not send")

    def _note(
        self, frame: FrameType, name: str, before: Tensor, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        found = place(frame)
        if not found or found[0] not in self._modules:
            return
        if name == GROUPED or any(varies(before, dim) for dim in range(before.dim())):
            after = tuple(self.labels(x) for x in tensors(out))
            light = tuple(before if isinstance(x, Tensor) else x for x in args)
            self.sites.append(Site(self._modules[found[0]], found[1], name, light, kwargs, before, after))

    def split(self, labels: Tensor) -> None:
        """Remember a view whose labels vary along two dimensions, where only one can be cut."""
        if sum(varies(labels, d) for d in range(labels.dim())) > 1:
            self.splits.append(labels)


def tensors(value: object) -> Iterator[Tensor]:
    """Yield every tensor in nested tuples, lists, mappings, dataclasses and namespaces."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name, None))
    elif isinstance(value, SimpleNamespace):
        yield from tensors(vars(value))


def _alike(buffer: Tensor) -> tuple[bool, ...]:
    """Along which dimensions all slices of a buffer are the same."""
    return tuple(size == 0 or bool((buffer == buffer.narrow(dim, 0, 1)).all()) for dim, size in enumerate(buffer.shape))
