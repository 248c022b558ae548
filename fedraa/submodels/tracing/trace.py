"""Find the width groups of any module."""

from __future__ import annotations

import copy
import re
import traceback
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import MappingProxyType

import torch
from torch import nn

from fedraa.data.tree import Tree, leaves, mapped
from fedraa.models.forward import forward
from fedraa.submodels.resize import MADE
from fedraa.submodels.traced import Traced
from fedraa.submodels.tracing.accept import check_code, check_gradients, check_kinds, first_line, private
from fedraa.submodels.tracing.grouping import group_units
from fedraa.submodels.tracing.modes import Noted
from fedraa.submodels.tracing.recorder import DataDependentError, Recorder, tensors
from fedraa.submodels.tracing.rules import WrongRuleError, has_own, rules
from fedraa.submodels.tracing.verify import Trial

OWN_TRIES = 8  # of each cut, where rules are the user's own

LARGE = 50_000_000  # parameters; copies of so many take longer, and more memory, than all the rest


def trace(module: nn.Module, example: Tree) -> Traced:
    """Find every index space of units along which `module` can be made smaller.

    The module runs on `example`, in evaluation and in training mode, while labels of units follow its tensors
    through every function. Units that must vanish together are tied; a group is a set of units that run
    through the same dimensions. Inputs and outputs are never cut, nor is anything that does not stay exact:
    a cut gives what the full module gives when the parameters of its absent units are zero. This is tried
    before the result is returned, and what does not pass is left whole.

    Of a large module the shapes alone are followed, and what is tried are narrow cuts of it.

    Args:
        module: any module. It is copied to the CPU, not changed. The copy of a large one shares its memory.
        example: a batch of at least two inputs: a tensor, or a tuple or a dict of tensors for its arguments.

    Raises:
        ValueError: the example does not run through the module, the forward pass depends on data, or the
            parameters cannot be trained as one float32 vector.
    """
    for part in leaves(example):
        if part.dim() < 1 or len(part) < 2:
            raise ValueError(f"example: shape {tuple(part.shape)} given, expected a batch of at least 2")
    check_code(module)
    check_kinds(module)
    module, example = copied(module), mapped(lambda part: part.cpu(), example)
    recorder, ran = _followed(module, example)
    traced = group_units(module, recorder)
    if others := {name: 1 for name in recorder.open if recorder.made.get(name) not in traced.units.get(name, {})}:
        again, ran = _followed(module, example, others)
        found = group_units(module, again)
        if sum(group.parameters for group in found.groups) > sum(group.parameters for group in traced.groups):
            recorder, traced = again, found
    tries = OWN_TRIES if has_own() else 1
    zeros = any(s.name in MADE and s.place in traced.sizes.get(s.module, ()) for s in recorder.sites)
    trial = Trial(traced, example, ran, large=bool(ran), fills=recorder.found.fills, zeros=zeros, tries=tries)
    while traced.groups and (failure := trial.fails(traced, range(len(traced.groups)))):
        for g in _suspects(trial, traced):
            _pin(recorder, traced, g, failure)
        traced = group_units(module, recorder)
    return traced


def copied(module: nn.Module) -> nn.Module:
    """The copy on the CPU that a Traced keeps."""
    return private(module, share=_is_large(module)).cpu()


def _is_large(module: nn.Module) -> bool:
    return sum(p.numel() for p in module.parameters()) > LARGE


def _followed(
    module: nn.Module, example: Tree, choices: Mapping[str, int] = MappingProxyType({})
) -> tuple[Recorder, list[list[str]]]:
    """What ran, and of a large module the names of the functions besides."""
    recorder, ran = _light_record(module, example, choices) if _is_large(module) else (None, [])
    return recorder or _record(module, example, choices=choices), ran


def _light_record(
    module: nn.Module, example: Tree, choices: Mapping[str, int] = MappingProxyType({})
) -> tuple[Recorder | None, list[list[str]]]:
    """As `_record`, on tensors that have shapes and no values; None if it needs values, or cannot be traced.

    And the functions that the module calls, in evaluation and in training mode.
    """
    memo: dict[int, object] = {id(p): nn.Parameter(p.to("meta"), p.requires_grad) for p in module.parameters()}
    memo |= {id(buffer): buffer.to("meta") for buffer in module.buffers()}
    try:
        shapes, example = copy.deepcopy(module, memo), mapped(lambda part: part[:2].to("meta"), example)
        recorder, ran = _record(module, example, shapes, choices=choices), []
        for training in (False, True):
            with torch.no_grad(), torch.random.fork_rng(), torch.device("meta"), Noted(shapes) as noted:
                torch.manual_seed(0)
                forward(shapes.train(training), example)
            ran.append(noted.names)
        return recorder, ran
    except Exception:  # whatever it is, it shows with values, too
        return None, []


def _record(
    module: nn.Module,
    example: Tree,
    shapes: nn.Module | None = None,
    *,
    choices: Mapping[str, int] = MappingProxyType({}),
    fills: bool = True,
) -> Recorder:
    """`shapes` is the module on the meta device, where it is followed there."""
    scratch = shapes or copy.deepcopy(module)  # training mode moves running statistics
    recorder = Recorder(scratch, rules(), module if shapes else None, fills=fills, choices=choices)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it hides the layers inside
    try:
        with torch.no_grad(), torch.random.fork_rng():
            for training in (False, True):  # some parts, such as auxiliary heads, run in training only
                scratch.train(training)
                path = _walk(recorder, scratch, example)
                if recorder.asked and _other_path(recorder, scratch, example) not in (path, None):
                    raise DataDependentError(
                        f"its forward branches on data or leaves PyTorch: it reads values by `{recorder.asked}`"
                    )
        if recorder.finds and (unused := recorder.unused()):
            raise DataDependentError(f"its data decide which layers run: `{recorder.finds}` leaves out {unused[0]!r}")
        recorder.hold_buffers()
    except DataDependentError as error:
        raise ValueError(f"module: {type(module).__name__} cannot be traced, {error}") from None
    except WrongRuleError as error:
        raise ValueError(f"tracing_rules: {error}") from error
    except Exception as error:  # whatever its code raises
        if recorder.found.filled:  # its code counts what it finds
            return _record(module, example, shapes, choices=choices, fills=False)
        parts = [f"{tuple(part.shape)} of {part.dtype}" for part in leaves(example)]
        batch = " and ".join(parts[:3]) + " and more" * (len(parts) > 3)
        raise ValueError(
            f"example: a batch {batch} does not run through {type(module).__name__}: {first_line(error, 100)}"
        ) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    with torch.device("meta") if shapes else nullcontext():
        check_gradients(scratch, mapped(lambda part: part[:2], example), list(recorder.strange.values()))
    return recorder


def _walk(recorder: Recorder, module: nn.Module, example: Tree) -> list[object]:
    """Run the module; returns what it did, down to its output."""
    inputs = mapped(lambda part: part[:2].clone(), example)
    recorder.path = []
    for part in leaves(inputs):
        recorder.feed(part)
    torch.manual_seed(0)  # layers that are dropped at random are the same on every path
    with recorder.found, recorder:
        out = forward(module, inputs)
    for tensor in tensors(out):
        recorder.ties.pin(recorder.labels(tensor), "it is the output of the model")
    return [*recorder.path, *recorder.steps(out)]


def _other_path(recorder: Recorder, module: nn.Module, example: Tree) -> list[object] | None:
    """What the module does if all that it asks of its data has the other answer; None if it then complains.

    So a warning or a check of the data is told apart from control flow that depends on data.
    """
    recorder.deny = True
    try:
        return _walk(recorder, module, example)
    except (AssertionError, ValueError):
        return None
    except Exception as error:
        if _fails_in_torch(error):
            raise
        return None
    finally:
        recorder.deny = False


def _fails_in_torch(error: BaseException) -> bool:
    """Whether a torch function raised it, and not the code that calls them."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return frames[-1][0].f_code.co_name == "__torch_function__"


def _suspects(trial: Trial, traced: Traced) -> Sequence[int]:
    """The groups that fail on their own; if none does, all of them."""
    alike: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for g, group in enumerate(traced.groups):
        # the layers of repeated blocks differ in a number, and their code is the same
        kind = tuple((re.sub(r"\d+", "#", entry.tensor), entry.dim) for entry in group.entries)
        alike.setdefault(kind, []).append(g)
    failing = [g for groups in alike.values() if trial.fails(traced, groups[:1]) for g in groups]
    everything = range(len(traced.groups))
    return failing or [g for g in everything if trial.fails(traced, [g])] or everything


def _pin(recorder: Recorder, traced: Traced, g: int, reason: str) -> None:
    entry = traced.groups[g].entries[0]
    start = sum(group.size for group in traced.groups[:g])
    units = traced.units[entry.tensor][entry.dim]
    mine = torch.from_numpy((units >= start) & (units < start + traced.groups[g].size))
    if entry.tensor in recorder.raw:
        labels = recorder.raw[entry.tensor].movedim(entry.dim, 0)[mine]
    else:
        labels = recorder.bound[entry.tensor][entry.dim][mine]
    recorder.ties.pin(labels, reason)
