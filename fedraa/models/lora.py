"""Low-rank adapters (LoRA, Hu et al. 2022) for the layers of any module, and back into plain layers."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.parameter import is_lazy

from fedraa.errors import short_text

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_LAYERS = (nn.Linear, *_CONVOLUTIONS, nn.Embedding)


class _Lookup(nn.Module):
    """A table [rank, entries], read by entry; the one of padding gets no gradient."""

    def __init__(self, entries: int, rank: int, padding: int | None) -> None:
        super().__init__()
        self.weight, self.padding = nn.Parameter(torch.empty(rank, entries)), padding

    def forward(self, x: Tensor) -> Tensor:
        return F.embedding(x, self.weight.T, self.padding)


class Adapted(nn.Module):
    """A frozen layer and what is learnt beside it: base(x) + scale * lora_B(lora_A(x)).

    `lora_A.weight` is [rank, in, ...], `lora_B.weight` [out, rank, ...], in float32 whatever the base is. `merged`
    [like the layer's weight], if there is one, is added to the weight and gets no gradient: a server moves it.
    Code that reads the layer's `weight` instead of calling it gets that with what is learnt, as a product that is
    dense; what else is asked of the layer is the base's.
    """

    lora_A: Any  # peft's names  # noqa: N815
    lora_B: Any  # noqa: N815
    merged: nn.Parameter | None

    def __init__(self, base: nn.Module, rank: int, scale: float, merge: bool, random: torch.Generator) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        weight = base.get_parameter("weight")
        with torch.random.fork_rng(devices=[]):  # torch's layers draw values of their own
            self.lora_A, self.lora_B = _pair(base, rank)
        self.to(weight.device)
        self.merged = nn.Parameter(torch.zeros_like(weight, dtype=torch.float32)) if merge else None
        fan_in = 1 if isinstance(base, nn.Embedding) else weight[0].numel()
        start = torch.rand(self.lora_A.weight.shape, generator=random) * 2 - 1
        with torch.no_grad():
            self.lora_A.weight.copy_(start / math.sqrt(fan_in))
            if isinstance(base, nn.Embedding) and base.padding_idx is not None:
                self.lora_A.weight[:, base.padding_idx] = 0  # as what is padded is in the table
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
        """What is learnt, as a change of the layer's weight, in float32."""
        weight = self.base.get_parameter("weight")
        product: Tensor = self.lora_B.weight.flatten(1) @ self.lora_A.weight.flatten(1)
        product = product.T if isinstance(self.base, nn.Embedding) else product
        change = self.scale * product.reshape(weight.shape)
        return change if self.merged is None else change + self.merged.detach()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in ("base", "lora_A", "lora_B"):  # an object that is still being made
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
    """The model with low-rank adapters beside its layers, which are frozen: only the adapters are trained and sent.

    The model itself stays as it is; its parameters are shared, not copied. An adapter starts as 0, and its `rank` units
    are a width group as any other: weak devices get the first of them, or a fragment, as the method has it. The scale
    is alpha / rank, with the full rank for every device, so that a device's part is what the whole gives with the other
    units silent; with fragment_scale it is alpha / its own rank while it trains.

    Args:
        model: any module. Linear, Conv1d to Conv3d without groups, and Embedding layers take adapters.
        rank: units of each adapter; more than a layer's own sides gain nothing.
        targets: the layers, by their names or the ends of their names (`"query"` is every `...query`). Default: every
            Linear and every Conv that can.
        train: layers or containers, named likewise, that are trained whole beside the adapters, such as a new head.
        alpha: default `rank`, for a scale of 1.
        merge: with room for what FLoRA adds to the layers' weights, which is as large as they are.
        seed: the same seed makes the same adapters.

    Raises ValueError, one sentence, for what matches nothing or takes no adapter.

        model = fedraa.lora(Net(), rank=8, targets=("query", "value"), train="head")
        history = fedraa.run(method="hetlora", model=model, dataset=data, rounds=20)
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model: got {type(model).__name__}; takes an nn.Module")
    if isinstance(rank, bool) or not isinstance(rank, Integral) or rank < 1:
        raise ValueError(f"rank: got {short_text(rank)}; takes a whole number from 1")
    alpha = float(rank) if alpha is None else alpha
    if isinstance(alpha, bool) or not isinstance(alpha, Real) or not 0 < alpha < math.inf:
        raise ValueError(f"alpha: got {short_text(alpha)}; takes a number over 0")
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not -(2**63) <= seed < 2**64:
        raise ValueError(f"seed: got {short_text(seed)}; takes a whole number of at most 64 bits")
    if any(isinstance(part, Adapted) for part in model.modules()):
        raise ValueError(f"model: {type(model).__name__} has adapters already; take merged(model), or the plain one")
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
    """A copy of a model with adapters as the plain model that it was, what the adapters learnt added to its weights.

    Layers that shared a weight have one each then: their adapters differ. What was frozen still is.

    Raises ValueError if it has no adapters of `lora`.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model: got {type(model).__name__}; takes an nn.Module")
    plain = copy.deepcopy(model)
    found = [(name, part) for name, part in plain.named_modules(remove_duplicate=False) if isinstance(part, Adapted)]
    if not found:
        raise ValueError(f"model: {type(model).__name__} has no adapters of fedraa.lora")
    for part in dict.fromkeys(part for _, part in found):
        weight = part.base.get_parameter("weight")
        moved = (weight.float() + part.product()).detach().to(weight.dtype)  # rounded once
        part.base.register_parameter("weight", nn.Parameter(moved, requires_grad=False))
    for name, part in found:
        plain = _put(plain, name, part.base)
    return plain


def _frozen(model: nn.Module, whole: Collection[str]) -> nn.Module:
    """A copy that shares the parameters of the model, less those of `whole`, which are trained."""
    if lazy := [name for name, p in model.named_parameters() if is_lazy(p)]:
        raise ValueError(f"model: {lazy[0]!r} has no shape yet; run the model once on a batch before")
    free = {id(p) for name in whole for p in model.get_submodule(name).parameters()}
    computed = [each for part in model.modules() for each in vars(part).values() if isinstance(each, Tensor)]
    memo: dict[int, Any] = {id(each): each.detach() for each in computed if not each.is_leaf}  # as by a hook
    for p in model.parameters():
        own = p.detach().clone() if id(p) in free else p.detach()
        memo[id(p)] = nn.Parameter(own, requires_grad=id(p) in free)
    try:
        return copy.deepcopy(model, memo)
    except (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError) as error:
        raise ValueError(
            f"model: {type(model).__name__} cannot be copied: {str(error).partition(chr(10))[0]}"
        ) from error


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
    """The names of the layers that get adapters, all names of each."""
    names = dict(model.named_modules(remove_duplicate=False))
    parts = {part for name in whole for part in model.get_submodule(name).modules()}
    if targets is None:
        usual = [name for name, layer in names.items() if not isinstance(layer, nn.Embedding) and layer not in parts]
        found = {name for name in usual if _unfit(names[name]) is None}
    else:
        found = _named(model, "targets", targets)
    for name in sorted(found):
        if (why := _unfit(names[name])) is not None:
            raise ValueError(f"targets: {name!r} {why}")
        if names[name] in parts:
            raise ValueError(f"targets: {name!r} is trained whole by train; name it in one of the two")
    if not found:
        raise ValueError(
            f"targets: {type(model).__name__} has no layer that takes an adapter; takes Linear, Conv without groups, "
            "Embedding"
        )
    layers = {names[name] for name in found}
    return {name for name, layer in names.items() if layer in layers}


def _named(model: nn.Module, field: str, given: str | Sequence[str]) -> set[str]:
    """The modules that are so called, or whose names end so."""
    names = [name for name, _ in model.named_modules(remove_duplicate=False)]
    found: set[str] = set()
    for end in given if isinstance(given, Iterable) and not isinstance(given, str) else (given,):
        if not isinstance(end, str):
            raise ValueError(f"{field}: got {short_text(end)}; takes names of layers, or the ends of their names")
        mine = {name for name in names if name == end or name.endswith(f".{end}")}
        if not mine:
            known = list(dict.fromkeys(name.rpartition(".")[2] for name in names if name))
            close = get_close_matches(end.rpartition(".")[2], known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(known[:8])}"
            raise ValueError(f"{field}: {end!r} is the name of no layer of {type(model).__name__}; {hint}")
        found |= mine
    return found


def _unfit(layer: nn.Module) -> str | None:
    """Why a layer takes no adapter, if it takes none."""
    if not isinstance(layer, _LAYERS):
        return f"is a {type(layer).__name__}, which takes no adapter; name Linear, Conv or Embedding layers"
    if isinstance(layer, _CONVOLUTIONS) and layer.groups > 1:
        return f"is a convolution of {layer.groups} groups, which takes no adapter"
    if "weight" not in dict(layer.named_parameters(recurse=False)):
        return "computes its weight from other tensors, so that it takes no adapter"
    if not layer.weight.is_floating_point():
        return f"has a weight of {layer.weight.dtype}, which takes no adapter"
    return None


def _put(model: nn.Module, name: str, part: nn.Module) -> nn.Module:
    """Put a part in place of a submodule; the model, or the part itself if it stands for all of it."""
    owner, _, last = name.rpartition(".")
    if not last:
        return part
    setattr(model.get_submodule(owner), last, part)
    return model
