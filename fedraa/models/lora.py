"""Low-rank adapters (LoRA, Hu et al. 2022) for the layers of any module, and their merge into the layers' weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterable, Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.parameter import is_lazy

from fedraa.errors import InputError, suggest_closest

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_LAYERS = (nn.Linear, *_CONVOLUTIONS, nn.Embedding)
LAYERS = "Linear, Conv without groups or Embedding layers with a weight of floats"


class _Lookup(nn.Module):
    """An embedding with a table [rank, entries] in place of [entries, rank]. The padding entry gets no gradient."""

    def __init__(self, entries: int, rank: int, padding: int | None) -> None:
        super().__init__()
        self.weight, self.padding = nn.Parameter(torch.empty(rank, entries)), padding

    def forward(self, x: Tensor) -> Tensor:
        return F.embedding(x, self.weight.T, self.padding)


class Adapted(nn.Module):
    """A frozen layer with an adapter: base(x) + scale * lora_B(lora_A(x)).

    `lora_A.weight` is [rank, in, ...] and `lora_B.weight` is [out, rank, ...]. Both are float32, whatever the type of
    the base. `merged`, if it exists, has the shape of the layer's weight and is added to it. It gets no gradient; the
    server changes it. The attribute `weight` is the base's weight plus the dense product of the adapter. All other
    attributes are those of the base.
    """

    # The library peft uses the same names.
    lora_A: Any  # noqa: N815
    lora_B: Any  # noqa: N815
    merged: nn.Parameter | None

    def __init__(self, base: nn.Module, rank: int, scale: float, merge: bool, random: torch.Generator) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        weight = base.get_parameter("weight")
        # Torch's layers draw initial values from the global generator, which must not change.
        with torch.random.fork_rng(devices=[]):
            self.lora_A, self.lora_B = _pair(base, rank)
        self.to(weight.device)
        self.merged = nn.Parameter(torch.zeros_like(weight, dtype=torch.float32)) if merge else None
        fan_in = 1 if isinstance(base, nn.Embedding) else weight[0].numel()
        start = torch.rand(self.lora_A.weight.shape, generator=random) * 2 - 1
        with torch.no_grad():
            self.lora_A.weight.copy_(start / math.sqrt(fan_in))
            if isinstance(base, nn.Embedding) and base.padding_idx is not None:
                # The padding entry must stay 0, as in the base.
                self.lora_A.weight[:, base.padding_idx] = 0
            self.lora_B.weight.zero_()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self._base(x)
        inside = x if isinstance(self.base, nn.Embedding) else x.to(self.lora_A.weight.dtype)
        beside: Tensor = self.lora_B(self.lora_A(inside)) * self.scale
        return out + beside.to(out.dtype)

    def _base(self, x: Tensor) -> Any:
        if self.merged is None:
            return self.base(x)
        weight = self.base.get_parameter("weight")
        return functional_call(self.base, {"weight": weight + self.merged.detach().to(weight.dtype)}, (x,))

    @property
    def weight(self) -> Tensor:
        weight = self.base.get_parameter("weight")
        return weight + self.product().to(weight.dtype)

    def product(self) -> Tensor:
        """Return the adapter, and `merged` if it exists, as a float32 change of the layer's weight."""
        weight = self.base.get_parameter("weight")
        product: Tensor = self.lora_B.weight.flatten(1) @ self.lora_A.weight.flatten(1)
        product = product.T if isinstance(self.base, nn.Embedding) else product
        change = self.scale * product.reshape(weight.shape)
        return change if self.merged is None else change + self.merged.detach()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            # During construction these are missing. A lookup in `self.base` would then recurse without end.
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

    The given model does not change. The result shares its parameters without a copy. The output of an adapter is 0
    at first. Its `rank` units are a width group like any other, so a method may give weak devices only the first units,
    or a fragment. The scale is alpha / rank, with the full rank for every device. The adapter of a device then equals
    the full adapter with all other units at zero. With fragment_scale the scale is alpha / the device's rank while it
    trains.

    Args:
        model: Any module. Linear, Conv1d to Conv3d without groups, and Embedding layers can have adapters.
        rank: The number of units of each adapter. A rank above the sides of a layer has no benefit.
        targets: The layers, by their names or the ends of their names (`"query"` is every `...query`). By default
            every Linear, and every Conv that can have an adapter.
        train: Layers or containers, named in the same way, that are trained in full, such as a new head.
        alpha: The numerator of the scale. The default `rank` gives the scale 1.
        merge: True to add a tensor `merged` of the weight's shape to each layer, which FLoRA requires.
        seed: The seed of the adapters' initial values.

    Raises:
        InputError: A name matches no layer, or a layer cannot have an adapter.

        model = fedraa.lora(Net(), rank=8, targets=("query", "value"), train="head")
        history = fedraa.run(method="hetlora", model=model, dataset=data, rounds=20)
    """
    if not isinstance(model, nn.Module):
        raise InputError("model", got=model, expected="an nn.Module")
    if isinstance(rank, bool) or not isinstance(rank, Integral) or rank < 1:
        raise InputError("rank", got=rank, expected="a whole number from 1")
    alpha = float(rank) if alpha is None else alpha
    if isinstance(alpha, bool) or not isinstance(alpha, Real) or not 0 < alpha < math.inf:
        raise InputError("alpha", got=alpha, expected="a number over 0")
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not -(2**63) <= seed < 2**64:
        raise InputError("seed", got=seed, expected="a whole number of at most 64 bits")
    if any(isinstance(part, Adapted) for part in model.modules()):
        problem = f"{type(model).__name__} already has adapters"
        raise InputError("model", problem, hint="give merged(model), or the plain model")
    rank, scale = int(rank), float(alpha) / int(rank)
    whole = _named(model, "train", train)
    chosen = _chosen(model, targets, whole)
    made, random = _frozen(model, whole), torch.Generator().manual_seed(int(seed))
    adapted: dict[nn.Module, Adapted] = {}
    for name, layer in list(made.named_modules(remove_duplicate=False)):
        if name in chosen:
            if layer not in adapted:
                adapted[layer] = Adapted(layer, rank, scale, merge, random)
            made = _put(made, name, adapted[layer])
    return made


def merged(model: nn.Module) -> nn.Module:
    """Return a copy of a model in which the adapters are added to the weights and removed.

    Layers that shared a weight get separate weights, because their adapters differ. Frozen parameters stay frozen.

    Raises:
        InputError: The model has no adapters of `lora`.
    """
    if not isinstance(model, nn.Module):
        raise InputError("model", got=model, expected="an nn.Module")
    plain = copy.deepcopy(model)
    adapted = [(name, part) for name, part in plain.named_modules(remove_duplicate=False) if isinstance(part, Adapted)]
    if not adapted:
        raise InputError("model", f"{type(model).__name__} has no adapters of fedraa.lora")
    for part in dict.fromkeys(part for _, part in adapted):
        weight = part.base.get_parameter("weight")
        # The sum is computed in float32, so that it is rounded only once.
        moved = (weight.float() + part.product()).detach().to(weight.dtype)
        part.base.register_parameter("weight", nn.Parameter(moved, requires_grad=False))
    for name, part in adapted:
        plain = _put(plain, name, part.base)
    return plain


def _frozen(model: nn.Module, whole: Collection[str]) -> nn.Module:
    """Return a copy of the model with frozen parameters, which it shares with the original.

    Only the modules in `whole` get copies of their parameters, which are trained.
    """
    for name, p in model.named_parameters():
        if is_lazy(p):
            raise InputError("model", f"{name!r} has no shape yet", hint="run the model once on a batch before")
    free = {id(p) for name in whole for p in model.get_submodule(name).parameters()}
    computed = [each for part in model.modules() for each in vars(part).values() if isinstance(each, Tensor)]
    # Hooks may have stored tensors that are computed from parameters. `deepcopy` fails for these unless detached.
    memo: dict[int, Any] = {id(tensor): tensor.detach() for tensor in computed if not tensor.is_leaf}
    for p in model.parameters():
        own = p.detach().clone() if id(p) in free else p.detach()
        memo[id(p)] = nn.Parameter(own, requires_grad=id(p) in free)
    try:
        return copy.deepcopy(model, memo)
    except (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError("model", f"{type(model).__name__} cannot be copied: {reason}") from error


def _pair(base: nn.Module, rank: int) -> tuple[nn.Module, nn.Module]:
    if isinstance(base, nn.Linear):
        return nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)
    if isinstance(base, nn.Embedding):
        return _Lookup(base.num_embeddings, rank, base.padding_idx), nn.Linear(rank, base.embedding_dim, bias=False)
    assert isinstance(base, _CONVOLUTIONS)
    kind: Any = next(kind for kind in _CONVOLUTIONS if isinstance(base, kind))
    how = {name: getattr(base, name) for name in ("stride", "padding", "dilation", "padding_mode")}
    return kind(base.in_channels, rank, base.kernel_size, bias=False, **how), kind(
        rank, base.out_channels, 1, bias=False
    )


def _chosen(model: nn.Module, targets: str | Sequence[str] | None, whole: Collection[str]) -> set[str]:
    """Return the names of the layers that get adapters, with all names of a shared layer.

    Args:
        model: The model.
        targets: The layers that the user named; None means every Linear and Conv that can have an adapter.
        whole: The names of the modules that are trained in full and get no adapter.

    Raises:
        InputError: No layer can have an adapter, or one in `targets` cannot.
    """
    names = dict(model.named_modules(remove_duplicate=False))
    parts = {part for name in whole for part in model.get_submodule(name).modules()}
    if targets is None:
        usual = [name for name, layer in names.items() if not isinstance(layer, nn.Embedding) and layer not in parts]
        chosen = {name for name in usual if _unfit(names[name]) is None}
    else:
        chosen = _named(model, "targets", targets)
    for name in sorted(chosen):
        reason = _unfit(names[name])
        if reason is not None:
            raise InputError("targets", f"{name!r} {reason}", expected=LAYERS)
        if names[name] in parts:
            raise InputError("targets", f"{name!r} is trained whole by train", hint="name it in one of the two")
    if not chosen:
        raise InputError("targets", f"{type(model).__name__} has no layer that takes an adapter", expected=LAYERS)
    layers = {names[name] for name in chosen}
    return {name for name, layer in names.items() if layer in layers}


def _named(model: nn.Module, field: str, given: str | Sequence[str]) -> set[str]:
    """Return the names of the modules that `given` names in full or by the last parts of a name.

    Args:
        model: The model.
        field: The field of the InputError for a name that matches no module.
        given: A name or several.
    """
    names = [name for name, _ in model.named_modules(remove_duplicate=False)]
    named: set[str] = set()
    for end in given if isinstance(given, Iterable) and not isinstance(given, str) else (given,):
        if not isinstance(end, str):
            raise InputError(field, got=end, expected="names of layers, or the ends of their names")
        matching = {name for name in names if name == end or name.endswith(f".{end}")}
        if not matching:
            known = list(dict.fromkeys(name.rpartition(".")[2] for name in names if name))
            hint = suggest_closest(end.rpartition(".")[2], known) or f"it has {', '.join(known[:8])}"
            raise InputError(field, got=end, expected=f"the name of a layer of {type(model).__name__}", hint=hint)
        named |= matching
    return named


def _unfit(layer: nn.Module) -> str | None:
    """Return the reason why a layer cannot have an adapter, or None if it can have one."""
    if not isinstance(layer, _LAYERS):
        return f"is a {type(layer).__name__}"
    if isinstance(layer, _CONVOLUTIONS) and layer.groups > 1:
        return f"is a convolution of {layer.groups} groups"
    if "weight" not in dict(layer.named_parameters(recurse=False)):
        return "computes its weight from other tensors"
    if not layer.weight.is_floating_point():
        return f"has a weight of {layer.weight.dtype}"
    return None


def _put(model: nn.Module, name: str, part: nn.Module) -> nn.Module:
    """Replace the submodule `name` by `part`. Return the model, or `part` if the name is that of the whole model."""
    owner, _, last = name.rpartition(".")
    if not last:
        return part
    setattr(model.get_submodule(owner), last, part)
    return model
