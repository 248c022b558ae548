"""The tracer's rules for products of tensors, and for functions that add or write at indices."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedraa.submodels.tracing.labels import varies_along
from fedraa.submodels.tracing.recorder import Recorder


def multiply_labels(r: Recorder, left: Tensor, right: Tensor) -> Tensor:
    """Return the unit label (number of the neuron or channel) of each element of a product of two activations.

    Args:
        r: The recorder.
        left: Labels of the left activation, `[..., i, c]`.
        right: Labels of the right activation, `[..., c, k]`.
    """
    reason = "a matrix product sums over all units"
    left = r.ties.tie_along(left, [left.dim() - 1], reason)
    return r.ties.merge_labels(left, r.ties.tie_along(right, [right.dim() - 2], reason))


def label_matmul(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label a matrix product of activations or of an activation and a weight."""
    left, right = args
    if name == "rmatmul":
        left, right = right, left
    if right.dim() == 1 and left.dim() > 1 and not r.name(left):
        r.put(out, _multiply_vector(r, left, right).expand(out.shape))
    elif right.dim() < 2 or (left.dim() < 2 and not (r.name(right) and right.dim() == 2)):
        r.give_up(name, out, args, kwargs)
    else:
        r.put(out, _multiply_factors(r, left, right).expand(out.shape))


def _multiply_vector(r: Recorder, left: Tensor, vector: Tensor) -> Tensor:
    """Return the unit label of each element of `left @ vector`.

    If the vector is a parameter and only the last dimension of `left` has units, the product sums over these units.
    No element of the result then belongs to a unit.
    """
    along = left.dim() - 1
    if r.name(vector) and _varies_only(r.labels(left), along):
        inner = r.ties.tie_along(r.labels(left), range(along), "a matrix product reads the units at every position")
        r.bind_units(vector, 0, inner.reshape(-1))
        return torch.zeros((1,) * along, dtype=torch.int64)
    return multiply_labels(r, r.labels(left), r.labels(vector).unsqueeze(-1)).squeeze(-1)


def _multiply_factors(r: Recorder, left: Tensor, right: Tensor) -> Tensor:
    """Return the unit label of each element of `left @ right`.

    One factor may be the weight of a layer or of several experts.
    """
    if r.name(right) and (right.dim() == 2 or _varies_only(r.labels(left), left.dim() - 1)):
        return _apply_layer(r, right, right.dim() - 2, r.labels(left), left.dim() - 1)
    if r.name(left) and not r.name(right) and _varies_only(r.labels(right), right.dim() - 2):
        return _apply_layer(r, left, left.dim() - 1, r.labels(right), right.dim() - 2).unsqueeze(-1)
    return multiply_labels(r, r.labels(left), r.labels(right))


def _apply_layer(r: Recorder, weight: Tensor, dim: int, labels: Tensor, along: int) -> Tensor:
    """Return the unit label of each element of the output of a layer that multiplies its input by a matrix.

    Args:
        r: The recorder.
        weight: The matrix.
        dim: The dimension of the matrix over which the product sums.
        labels: Labels of the input.
        along: The dimension of the input over which the product sums.
    """
    positions = [d for d in range(labels.dim()) if d != along]
    inner = r.ties.tie_along(labels, positions, "a matrix product reads the units at every position").reshape(-1)
    r.bind_units(weight, dim, inner)
    return r.make_units(weight, 2 * weight.dim() - 3 - dim)


def _varies_only(labels: Tensor, dim: int) -> bool:
    return not any(varies_along(labels, d) for d in range(labels.dim()) if d != dim)


def label_grouped_product(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label the product of rows [s, in] and the matrices of their experts [experts, in, out]."""
    x = args[0]
    weight = args[1]
    if not r.name(weight) or (x.dim(), weight.dim()) != (2, 3):
        r.give_up(name, out, args, kwargs)
        return
    r.put(out, _apply_layer(r, weight, 1, r.labels(x), 1).expand(out.shape))


def label_addmm(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label the sum of a matrix product and a bias or an activation."""
    matrices = ("mat1", "mat2") if name == "addmm" else ("batch1", "batch2")
    added, left, right = arguments_of(args, kwargs, "input", *matrices)
    units = _multiply_factors(r, left, right)
    if r.name(added) and added.dim() == 1 and units.dim() == 1:
        r.bind_units(added, 0, units)
    else:
        units = r.ties.merge_labels(r.labels(added), units)
    r.put(out, units.expand(out.shape))


def label_einsum(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label the result of an einsum.

    Elements of an activation along a summed letter must be cut together. If exactly one of several operands is a
    parameter, it counts as the weight of a layer. The layer's outputs are new units along one letter of the result. Its
    inputs are the units of an activation along one summed letter.
    """
    equation, *operands = args
    if isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    if not isinstance(equation, str):
        r.give_up(name, out, args, kwargs)
        return
    ins, outs = _spell_equation(equation.replace(" ", ""), [x.dim() for x in operands])
    terms = list(zip(ins, operands, strict=True))
    if any(len(set(letters)) < len(letters) for letters, _ in terms):
        r.give_up(name, out, args, kwargs)
        return
    weights = [term for term in terms if r.name(term[1])]
    if len(terms) > 1 and len(weights) == 1:
        terms = [term for term in terms if term is not weights[0]] + weights
        labels = _einsum_units(r, terms, outs)
        if labels is not None:
            r.put(out, labels.expand(out.shape))
            return

    def sum_letters(letters: str, x: Tensor) -> Tensor:
        dims = [d for d, c in enumerate(letters) if c not in outs]
        return r.ties.tie_along(r.labels(x), dims, "`einsum` sums over all units")

    r.put(out, _multiply_terms(r, ((letters, sum_letters(letters, x)) for letters, x in terms), outs).expand(out.shape))


def _einsum_units(r: Recorder, terms: Sequence[tuple[str, Tensor]], outs: str) -> Tensor | None:
    """Return the unit label of each element of an einsum of activations and a weight.

    Return None if the weight adds no units to the result.

    Args:
        r: The recorder.
        terms: The letters and the tensor of each operand. The weight is last.
        outs: Letters of the result.
    """
    *activations, (own, weight) = terms
    letters = "".join(dict.fromkeys("".join(term for term, _ in activations)))
    shared = set(own) & set(letters)
    new = [c for c in own if c in outs and c not in letters]
    if not new or len(shared) + len(new) != len(own):
        return None
    labels = _multiply_terms(r, ((term, r.labels(x)) for term, x in activations), letters)
    labels = labels.expand([max(x.size(term.index(c)) for term, x in activations if c in term) for c in letters])
    varied = {c for d, c in enumerate(letters) if varies_along(labels, d)}
    if shared & set(outs) & varied:
        return None
    made_along = new[r.choose_dim(weight, len(new))]
    return _einsum_layer(r, own, weight, letters, labels, made_along, outs)


def _multiply_terms(r: Recorder, terms: Iterable[tuple[str, Tensor]], letters: str) -> Tensor:
    """Return the unit label of each element of an elementwise product of activations, as in an einsum.

    Args:
        r: The recorder.
        terms: For each activation, the letters of its dimensions and its labels.
        letters: The letters of the product's dimensions.
    """
    result = torch.zeros((1,) * len(letters), dtype=torch.int64)
    for own, labels in terms:
        result = r.ties.merge_labels(result, _order_letters(labels, own, letters))
    return result


def _spell_equation(equation: str, sizes: Sequence[int]) -> tuple[list[str], str]:
    """Return the letters of each operand of an einsum with these numbers of dimensions, and the letters of the result.

    Letters replace `...`. If the equation has no `->`, the letters of the result follow from the operands.
    """
    ins, arrow, outs = equation.partition("->")
    terms = ins.split(",")
    # Without `->`, the result has the letters that occur once, in alphabetical order.
    if not arrow:
        outs = "".join(sorted(c for c in set(ins) - set(",.") if ins.count(c) == 1))
        if "..." in ins:
            outs = "..." + outs
    spare = "".join(c for c in string.ascii_letters if c not in equation)[: max(sizes)]
    missing = [size - len(term.replace("...", "")) for term, size in zip(terms, sizes, strict=True)]
    longest = max((n for n, term in zip(missing, terms, strict=True) if "..." in term), default=0)
    spelled = [term.replace("...", spare[longest - n : longest]) for n, term in zip(missing, terms, strict=True)]
    return spelled, outs.replace("...", spare[:longest])


def _einsum_layer(
    r: Recorder, weights: str, weight: Tensor, letters: str, labels: Tensor, new: str, outs: str
) -> Tensor:
    """Return the unit label of each element of an einsum of an activation and a weight.

    The inputs of the weight are the units of the activation along one summed letter. If several letters are summed,
    this is the first letter with several units.

    Args:
        r: The recorder.
        weights: Letters of the weight.
        weight: The weight.
        letters: Letters of the activation.
        labels: Labels of the activation.
        new: The letter of the weight along which the output units lie.
        outs: Letters of the result.
    """
    summed = [c for c in weights if c in letters and c not in outs]
    varying = [c for c in summed if varies_along(labels, letters.index(c))]
    cut = (*varying, *summed, None)[0]
    positions = [d for d, c in enumerate(letters) if c != cut]
    inner = r.ties.tie_along(labels, positions, "`einsum` reads the units at every position").reshape(-1)
    if cut is not None:
        r.bind_units(weight, weights.index(cut), inner)
    return r.make_units(weight, weights.index(new)).view([-1 if c == new else 1 for c in outs])


def _order_letters(labels: Tensor, letters: str, outs: str) -> Tensor:
    """Return the labels with dimensions in the order of the letters `outs`.

    Args:
        labels: The labels.
        letters: The letters of the dimensions of `labels`.
        outs: The letters of the result. A letter that is not in `letters` gets a dimension of size 1.
    """
    kept = [c for c in outs if c in letters]
    gone = [d for d, c in enumerate(letters) if c not in outs]
    moved = labels.permute([letters.index(c) for c in kept] + gone)
    if gone:
        moved = moved.flatten(len(kept)).squeeze(-1)
    for d, c in enumerate(outs):
        if c not in letters:
            moved = moved.unsqueeze(d)
    return moved


def label_scatter(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label the result of a function that adds or writes slices of one tensor into another, at indices along `dim`."""
    x, dim, _, source = arguments_of(args, kwargs, "input", "dim", "index", "src" if "scatter" in name else "source")
    labels = r.ties.tie_along(r.labels(x), [dim], "the code picks some units by their index")
    if isinstance(source, Tensor):
        added = r.ties.tie_along(r.labels(source), [dim], "the code picks some units by their index")
        unlike = _unlike_dims(labels, added)
        if _varies_in_any(labels, unlike) or _varies_in_any(added, unlike):
            r.give_up(name, out, args, kwargs)
            return
        labels = r.ties.merge_labels(_thin_labels(labels, unlike), _thin_labels(added, unlike))
    r.put(out, labels.expand(out.shape))


def label_gather(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label the result of a gather along `dim`. Elements along `dim` must be cut together."""
    x, dim = arguments_of(args, kwargs, "input", "dim")
    labels = r.ties.tie_along(r.labels(x), [dim], "the code picks some units by their index")
    unlike = _unlike_dims(labels, out)
    if _varies_in_any(labels, unlike):
        r.give_up(name, out, args, kwargs)
        return
    r.put(out, _thin_labels(labels, unlike).expand(out.shape))


def _unlike_dims(left: Tensor, right: Tensor) -> list[int]:
    return [d for d in range(left.dim()) if left.size(d) != right.size(d)]


def _varies_in_any(labels: Tensor, dims: Sequence[int]) -> bool:
    return any(varies_along(labels, d) for d in dims)


def _thin_labels(labels: Tensor, dims: Sequence[int]) -> Tensor:
    """Return the labels at index 0 of the dimensions `dims`, as a tensor with size 1 in these dimensions.

    The labels must not vary along these dimensions.
    """
    for d in dims:
        labels = labels.narrow(d, 0, 1)
    return labels


def arguments_of(args: tuple[Any, ...], kwargs: dict[str, Any], *names: str) -> tuple[Any, ...]:
    """Return the arguments with these names, passed by position or by keyword. An absent argument is None."""
    values = (*args, *[None] * len(names))[: len(names)]
    return tuple(kwargs.get(name, value) for name, value in zip(names, values, strict=True))
