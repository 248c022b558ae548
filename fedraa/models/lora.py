"""Low-rank adapters (LoRA, Hu et al. 2022) for any module, and a function that merges them into the weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.parameter import is_lazy

from fedraa.errors import InputError, first_line, suggest_closest
from fedraa.models.computed_weights import copy_computed
from fedraa.numbers import MAX_FLOAT32

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_LAYERS = (nn.Linear, *_CONVOLUTIONS, nn.Embedding)
LAYERS = "Linear, Conv without groups or Embedding layers with a weight of floats"


class _Lookup(nn.Module):
    """An embedding with a transposed table [rank, entries], without a gradient for the padding entry."""

    def __init__(self, entries: int, rank: int, padding: int | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rank, entries))
        self.padding = padding

    def forward(self, x: Tensor) -> Tensor:
        return F.embedding(x, self.weight.T, self.padding)


class Adapted(nn.Module):
    """A frozen layer with an adapter: base(x) + scale * lora_B(lora_A(x)).

    All other attributes are those of the base.

    Attributes:
        lora_A: Layer with the float32 weight [rank, in, ...].
        lora_B: Layer with the float32 weight [out, rank, ...].
        merged: A parameter that is added to the layer's weight, or None. It gets no gradient; the server changes it.
        weight: The base's weight plus the result of `compute_change`.
    """

    # The library peft uses this name.
    lora_A: Any  # noqa: N815
    # The library peft also uses this name.
    lora_B: Any  # noqa: N815
    merged: nn.Parameter | None

    def __init__(self, base: nn.Module, rank: int, scale: float, merge: bool, random: torch.Generator) -> None:
        super().__init__()
        self.base = base
        self.scale = scale
        weight = base.get_parameter("weight")
        # Torch's layers draw initial values from the global generator.
        with torch.random.fork_rng(devices=[]):
            self.lora_A, self.lora_B = _make_pair(base, rank)
        self.to(weight.device)
        self.merged = None
        if merge:
            self.merged = nn.Parameter(torch.zeros_like(weight, dtype=torch.float32))
        fan_in = 1 if isinstance(base, nn.Embedding) else weight[0].numel()
        start = torch.rand(self.lora_A.weight.shape, generator=random) * 2 - 1
        with torch.no_grad():
            self.lora_A.weight.copy_(start / math.sqrt(fan_in))
            if isinstance(base, nn.Embedding) and base.padding_idx is not None:
                # The padding entry must stay 0, as in the base.
                self.lora_A.weight[:, base.padding_idx] = 0
            self.lora_B.weight.zero_()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self._run_base(x)
        if not isinstance(self.base, nn.Embedding):
            x = x.to(self.lora_A.weight.dtype)
        change: Tensor = self.lora_B(self.lora_A(x)) * self.scale
        return out + change.to(out.dtype)

    def _run_base(self, x: Tensor) -> Any:
        """Return the result of the base layer, with `merged` added to its weight."""
        if self.merged is None:
            return self.base(x)
        weight = self.base.get_parameter("weight")
        return functional_call(self.base, {"weight": weight + self.merged.detach().to(weight.dtype)}, (x,))

    @property
    def weight(self) -> Tensor:
        weight = self.base.get_parameter("weight")
        return weight + self.compute_change().to(weight.dtype)

    def compute_change(self) -> Tensor:
        """Return the change of the weight: `scale` times the product of `lora_B` and `lora_A`, plus `merged`."""
        weight = self.base.get_parameter("weight")
        product: Tensor = self.lora_B.weight.flatten(1) @ self.lora_A.weight.flatten(1)
        if isinstance(self.base, nn.Embedding):
            product = product.T
        change = self.scale * product.reshape(weight.shape)
        if self.merged is None:
            return change
        return change + self.merged.detach()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            # These attributes are missing during construction, so `self.base` would recurse without end.
            if name in ("base", "lora_A", "lora_B"):
                raise
            return getattr(self.base, name)


def lora(
    model: nn.Module,
    rank: int = 8,
    *,
    targets: str | Sequence[str] | None = None,
    train: str | Sequence[str] = (),
    alpha: float | None = None,
    merge: bool = False,
    seed: int = 0,
) -> nn.Module:
    """Return a model with low-rank adapters on its frozen layers. Only the adapters are trained and sent.

        model = fedraa.lora(Net(), rank=8, targets=("query", "value"), train="head")
        history = fedraa.run(method="hetlora", model=model, dataset=data, rounds=20)

    `model` does not change, and the result shares its parameters. The output of an adapter is 0 at first. Methods that
    cut models also cut the `rank` units of an adapter. The output of an adapter is multiplied by the scale
    alpha / rank on every device. With `fragment_scale`, the scale in training is alpha / (the device's rank).

    Args:
        model: Any module. Linear, Conv1d to Conv3d without groups, and Embedding layers can have adapters.
        rank: The number of units of each adapter. A rank above the smaller side of a layer's weight has no benefit.
        targets: The layers, by their names or the ends of their names (`"query"` is every `...query`). By default every
            Linear, and every Conv that can have an adapter.
        train: Layers or containers, named in the same way, that are trained in full, such as a new head.
        alpha: The numerator of the scale. The default `rank` gives the scale 1.
        merge: True to give each layer a parameter `merged` with the shape of its weight. The method flora requires it.
        seed: The seed of the adapters' initial values.

    Raises:
        InputError: A name matches no layer, or a layer cannot have an adapter.
    """
    if not isinstance(model, nn.Module):
        raise InputError("model", got=model, expected="an nn.Module")
    if isinstance(rank, bool) or not isinstance(rank, Integral) or rank < 1:
        raise InputError("rank", got=rank, expected="a whole number from 1")
    if alpha is None:
        alpha = float(rank)
    if isinstance(alpha, bool) or not isinstance(alpha, Real) or not 0 < alpha <= MAX_FLOAT32:
        raise InputError("alpha", got=alpha, expected=f"a number over 0, up to {MAX_FLOAT32:g}")
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not -(2**63) <= seed < 2**64:
        raise InputError("seed", got=seed, expected="a whole number of at most 64 bits")
    if any(isinstance(part, Adapted) for part in model.modules()):
        problem = f"{type(model).__name__} already has adapters"
        raise InputError("model", problem, hint="pass merged(model), or the plain model")
    rank = int(rank)
    scale = float(alpha) / rank
    whole = _match_names(model, "train", train)
    chosen = _choose_layers(model, targets, whole)
    result = _copy_frozen(model, whole)
    random = torch.Generator().manual_seed(int(seed))
    adapted: dict[nn.Module, Adapted] = {}
    for name, layer in list(result.named_modules(remove_duplicate=False)):
        if name in chosen:
            if layer not in adapted:
                adapted[layer] = Adapted(layer, rank, scale, merge, random)
            result = _replace_module(result, name, adapted[layer])
    return result


def merged(model: nn.Module) -> nn.Module:
    """Return a copy of a model with its adapters merged into the weights.

    Layers that shared a weight get separate weights. Frozen parameters stay frozen. Raises InputError if the model has
    no adapters that `lora` made.
    """
    if not isinstance(model, nn.Module):
        raise InputError("model", got=model, expected="an nn.Module")
    plain = copy.deepcopy(model, copy_computed(model))
    adapted = [(name, part) for name, part in plain.named_modules(remove_duplicate=False) if isinstance(part, Adapted)]
    if not adapted:
        raise InputError("model", f"{type(model).__name__} has no adapters of fedraa.lora")
    for part in dict.fromkeys(part for _, part in adapted):
        weight = part.base.get_parameter("weight")
        # With float32 the sum is rounded only once.
        moved = (weight.float() + part.compute_change()).detach().to(weight.dtype)
        part.base.register_parameter("weight", nn.Parameter(moved, requires_grad=False))
    for name, part in adapted:
        plain = _replace_module(plain, name, part.base)
    return plain


def _copy_frozen(model: nn.Module, whole: Collection[str]) -> nn.Module:
    """Return a copy of the model that shares the original's parameters and freezes them.

    Modules in `whole` get trainable copies of their parameters.
    """
    for name, p in model.named_parameters():
        if is_lazy(p):
            raise InputError("model", f"{name!r} has no shape yet", hint="run the model on a batch first")
    free = set(map(id, chain.from_iterable(model.get_submodule(name).parameters() for name in whole)))
    memo = copy_computed(model)
    for p in model.parameters():
        value = p.detach()
        if id(p) in free:
            value = value.clone()
        memo[id(p)] = nn.Parameter(value, requires_grad=id(p) in free)
    try:
        return copy.deepcopy(model, memo)
    except (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError) as error:
        raise InputError("model", f"{type(model).__name__} cannot be copied: {first_line(error)}") from error


def _make_pair(base: nn.Module, rank: int) -> tuple[nn.Module, nn.Module]:
    if isinstance(base, nn.Linear):
        return nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)
    if isinstance(base, nn.Embedding):
        return _Lookup(base.num_embeddings, rank, base.padding_idx), nn.Linear(rank, base.embedding_dim, bias=False)
    assert isinstance(base, _CONVOLUTIONS)
    kind: Any = next(kind for kind in _CONVOLUTIONS if isinstance(base, kind))
    options = {name: getattr(base, name) for name in ("stride", "padding", "dilation", "padding_mode")}
    first = kind(base.in_channels, rank, base.kernel_size, bias=False, **options)
    return first, kind(rank, base.out_channels, 1, bias=False)


def _choose_layers(model: nn.Module, targets: str | Sequence[str] | None, whole: Collection[str]) -> set[str]:
    """Return all names of the layers that get adapters.

    Args:
        model: The model.
        targets: The layers that the user named; None means every Linear and Conv that can have an adapter.
        whole: The names of the modules that are trained in full and get no adapter.

    Raises:
        InputError: No layer can have an adapter, or a layer in `targets` cannot have one.
    """
    names = dict(model.named_modules(remove_duplicate=False))
    parts = set(chain.from_iterable(model.get_submodule(name).modules() for name in whole))
    if targets is None:
        usual = [name for name, layer in names.items() if not isinstance(layer, nn.Embedding) and layer not in parts]
        chosen = {name for name in usual if _describe_unfit(names[name]) is None}
    else:
        chosen = _match_names(model, "targets", targets)
    for name in sorted(chosen):
        reason = _describe_unfit(names[name])
        if reason is not None:
            raise InputError("targets", f"{name!r} {reason}", expected=LAYERS)
        if names[name] in parts:
            raise InputError("targets", f"{name!r} is also in `train`", hint="name it only in `targets` or in `train`")
    if not chosen:
        raise InputError("targets", f"{type(model).__name__} has no layer that can have an adapter", expected=LAYERS)
    layers = {names[name] for name in chosen}
    return {name for name, layer in names.items() if layer in layers}


def _match_names(model: nn.Module, field: str, ends: str | Sequence[str]) -> set[str]:
    """Return the module names that match an entry of `ends`: `query` matches `query` and `encoder.query`.

    Args:
        model: The model.
        field: The field of the InputError for a name that matches no module.
        ends: Names, or the last parts of names.
    """
    names = [name for name, _ in model.named_modules(remove_duplicate=False)]
    named: set[str] = set()
    if isinstance(ends, str) or not isinstance(ends, Iterable):
        ends = (ends,)
    for end in ends:
        if not isinstance(end, str):
            raise InputError(field, got=end, expected="names of layers, or the ends of their names")
        matching = {name for name in names if name == end or name.endswith(f".{end}")}
        if not matching:
            known = list(dict.fromkeys(name.rpartition(".")[2] for name in names if name))
            hint = suggest_closest(end.rpartition(".")[2], known) or f"name one of {', '.join(known[:8])}"
            raise InputError(field, got=end, expected=f"the name of a layer of {type(model).__name__}", hint=hint)
        named |= matching
    return named


def _describe_unfit(layer: nn.Module) -> str | None:
    """Return why a layer cannot have an adapter, or None if it can."""
    if not isinstance(layer, _LAYERS):
        return f"is a {type(layer).__name__}"
    if isinstance(layer, _CONVOLUTIONS) and layer.groups > 1:
        return f"is a convolution of {layer.groups} groups"
    if "weight" not in dict(layer.named_parameters(recurse=False)):
        return "computes its weight from other tensors"
    if not layer.weight.is_floating_point():
        return f"has a weight of {layer.weight.dtype}"
    return None


def _replace_module(model: nn.Module, name: str, part: nn.Module) -> nn.Module:
    """Replace the submodule `name` and return the model. With an empty name, return `part`."""
    owner, _, last = name.rpartition(".")
    if not last:
        return part
    setattr(model.get_submodule(owner), last, part)
    return model
