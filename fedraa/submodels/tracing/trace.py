"""The search for width groups: units of a module that must be cut together. A test compares cut and full modules."""

from __future__ import annotations

import copy
import re
import traceback
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import MappingProxyType

import torch
from torch import nn

from fedraa.data.tree import Tree, list_leaves, map_tree
from fedraa.errors import InputError
from fedraa.models.forward import forward
from fedraa.submodels.resize import ZERO_MAKERS
from fedraa.submodels.traced import Traced
from fedraa.submodels.tracing.accept import check_code, check_kinds, compute_gradients, copy_private, short_line
from fedraa.submodels.tracing.grouping import group_units
from fedraa.submodels.tracing.modes import FunctionNames, without_fast_path
from fedraa.submodels.tracing.recorder import DataDependentError, Recorder, iterate_tensors
from fedraa.submodels.tracing.rules import WrongRuleError, collect_rules, has_custom_rules
from fedraa.submodels.tracing.verify import CutChecker

CUSTOM_RULE_TRIES = 8
"""Number of tests of the width groups if custom tracing rules are active."""
LARGE = 50_000_000
"""A model with more parameters is traced without copies of its weights, to save time and memory."""


def trace_module(module: nn.Module, example: Tree) -> Traced:
    """Find every group of units that can be cut from `module`.

    The module runs in evaluation and in training mode. A run of a large module computes only shapes, no values. During
    the run, each torch function also computes to which unit each element of its result belongs. A test then compares a
    submodel with the full module in which the parameters of all other units are 0. A group that fails the test is never
    cut. Inputs and outputs are never cut either.

    Args:
        module: Any module. The function traces a copy on the CPU, which shares the memory of a large module.
        example: A batch of at least two inputs: a tensor, or a tuple or a dict of tensors for several arguments.

    Raises:
        InputError: The example does not run through the module, the forward pass depends on data, or the parameters
            cannot be trained as one float32 vector.
    """
    for part in list_leaves(example):
        if part.dim() < 1 or len(part) < 2:
            raise InputError("example", got=part, expected="a batch of at least 2")
    check_code(module)
    check_kinds(module)
    module = copy_to_cpu(module)
    example = map_tree(lambda part: part.cpu(), example)
    recorder, ran = _record_module(module, example)
    traced = group_units(module, recorder)
    choices = {name: 1 for name in recorder.ambiguous if recorder.unit_dims.get(name) not in traced.units.get(name, {})}
    if choices:
        second_recorder, ran = _record_module(module, example, choices)
        second = group_units(module, second_recorder)
        if _cut_parameters(second) > _cut_parameters(traced):
            recorder, traced = second_recorder, second
    tries = CUSTOM_RULE_TRIES if has_custom_rules() else 1
    zeros = any(s.name in ZERO_MAKERS and s.place in traced.sizes.get(s.module, ()) for s in recorder.sized_calls)
    checker = CutChecker(traced, example, ran, large=bool(ran), fills=recorder.found.fills, zeros=zeros, tries=tries)
    while failure := checker.find_failure(traced, range(len(traced.groups))):
        for g in _find_suspects(checker, traced):
            _pin_group(recorder, traced, g, failure)
        traced = group_units(module, recorder)
    return traced


def _cut_parameters(traced: Traced) -> int:
    """Return the number of scalar parameters that can be cut."""
    return sum(group.parameters for group in traced.groups)


def copy_to_cpu(module: nn.Module) -> nn.Module:
    """Return a copy of a module on the CPU. If the module is large, the copy shares the module's memory."""
    return copy_private(module, share=_is_large(module)).cpu()


def _is_large(module: nn.Module) -> bool:
    return sum(p.numel() for p in module.parameters()) > LARGE


def _record_module(
    module: nn.Module, example: Tree, choices: Mapping[str, int] = MappingProxyType({})
) -> tuple[Recorder, list[list[str]]]:
    """Run the module and record the run. A large module runs with shapes instead of values if it can.

    Also return the names of the functions that ran in evaluation mode and in training mode. The list of names is
    empty if the module ran with values.

    Args:
        module: The module.
        example: A batch of at least two inputs.
        choices: By name of a parameter: the index of its unit dimension among the possible ones, from 0.
    """
    if _is_large(module):
        recorder, ran = _record_shapes(module, example, choices)
        if recorder is not None:
            return recorder, ran
    return _record_run(module, example, choices=choices), []


def _record_shapes(
    module: nn.Module, example: Tree, choices: Mapping[str, int] = MappingProxyType({})
) -> tuple[Recorder | None, list[list[str]]]:
    """Record a run that computes only shapes. Return None as the recorder if the module cannot run this way.

    Also return the names of the functions that ran in evaluation mode and in training mode.

    Args:
        module: The module.
        example: A batch of at least two inputs.
        choices: By name of a parameter: the index of its unit dimension among the possible ones, from 0.
    """
    memo: dict[int, object] = {id(p): nn.Parameter(p.to("meta"), p.requires_grad) for p in module.parameters()}
    memo |= {id(buffer): buffer.to("meta") for buffer in module.buffers()}
    try:
        shapes = copy.deepcopy(module, memo)
        example = map_tree(lambda part: part[:2].to("meta"), example)
        recorder = _record_run(module, example, shapes, choices=choices)
        ran = []
        for training in (False, True):
            with torch.no_grad(), torch.random.fork_rng(), torch.device("meta"), FunctionNames(shapes) as noted:
                torch.manual_seed(0)
                forward(shapes.train(training), example)
            ran.append(noted.names)
        return recorder, ran
    # The caller runs the module again with values. That run raises the error.
    except Exception:
        return None, []


def _record_run(
    module: nn.Module,
    example: Tree,
    shapes: nn.Module | None = None,
    *,
    choices: Mapping[str, int] = MappingProxyType({}),
    fills: bool = True,
) -> Recorder:
    """Run the module, and return the recorder of the run.

    Args:
        module: The module.
        example: A batch of at least two inputs.
        shapes: A copy of the module on the meta device, which computes only shapes. None to run `module` with values.
        choices: By name of a parameter: the index of its unit dimension among the possible ones, from 0.
        fills: In a mixture of experts, True runs an expert on row 0 if the example gives it no row.
    """
    # Run a copy, because training mode would change the running statistics of the module.
    scratch = shapes or copy.deepcopy(module)
    recorder = Recorder(scratch, collect_rules(), module if shapes else None, fills=fills, choices=choices)
    try:
        with torch.no_grad(), torch.random.fork_rng(), without_fast_path():
            # Some layers, such as auxiliary heads, run only in training.
            for training in (False, True):
                scratch.train(training)
                path = _run_path(recorder, scratch, example)
                if recorder.branch_function and _run_opposite_path(recorder, scratch, example) not in (path, None):
                    name = recorder.branch_function
                    raise DataDependentError(
                        f"its forward branches on data or leaves PyTorch: it reads values by `{name}`"
                    )
        unused = recorder.find_unused()
        if recorder.search_function and unused:
            raise DataDependentError(
                f"its data decide which layers run: `{recorder.search_function}` leaves out {unused[0]!r}"
            )
        recorder.pin_unequal_buffers()
    except DataDependentError as error:
        raise InputError("module", f"{type(module).__name__} cannot be traced: {error}") from None
    except WrongRuleError as error:
        raise InputError("tracing_rules", str(error)) from error
    # If the example gives an expert no row, the recorder runs this expert on row 0. The error may come from that
    # additional computation, so the module runs again without it.
    except Exception as error:
        if recorder.found.filled:
            return _record_run(module, example, shapes, choices=choices, fills=False)
        parts = [f"{list(part.shape)} of {str(part.dtype).removeprefix('torch.')}" for part in list_leaves(example)]
        if len(parts) > 3:
            parts[3:] = ["more"]
        batch = " and ".join(parts)
        problem = f"a batch {batch} does not run through {type(module).__name__}: {short_line(error, 100)}"
        raise InputError("example", problem) from error
    with torch.device("meta") if shapes else nullcontext():
        compute_gradients(scratch, map_tree(lambda part: part[:2], example))
    return recorder


def _run_path(recorder: Recorder, module: nn.Module, example: Tree) -> list[object]:
    """Run the module. Return the functions that ran and the sources of their arguments.

    The caller compares the results of two runs. A source is the parameter, or the earlier function, from which a tensor
    comes. The last entries are the sources of the module's output.

    Args:
        recorder: The recorder.
        module: The module.
        example: A batch of at least two inputs.
    """
    inputs = map_tree(lambda part: part[:2].clone(), example)
    recorder.path = []
    for part in list_leaves(inputs):
        recorder.track_input(part)
    # A module may skip layers at random. With this seed, it skips the same layers in every run.
    torch.manual_seed(0)
    with recorder.found, recorder:
        out = forward(module, inputs)
    for tensor in iterate_tensors(out):
        recorder.ties.pin(recorder.labels(tensor), "it is the output of the model")
    return [*recorder.path, *recorder.steps(out)]


def _run_opposite_path(recorder: Recorder, module: nn.Module, example: Tree) -> list[object] | None:
    """Run the module with the opposite result of each condition that depends on data, such as `if x.max() > 1`.

    Return the functions that ran, or None if the module's code raises an error. If the result is None, or if the same
    functions ran as in the normal run, the conditions check the data and do not choose functions.

    Args:
        recorder: The recorder.
        module: The module.
        example: A batch of at least two inputs.
    """
    recorder.inverts_branches = True
    try:
        return _run_path(recorder, module, example)
    except (AssertionError, ValueError):
        return None
    # The code of a module may raise any exception.
    except Exception as error:
        if _fails_in_torch(error):
            raise
        return None
    finally:
        recorder.inverts_branches = False


def _fails_in_torch(error: BaseException) -> bool:
    """Return True if a torch function raised the error, False if the module's code did."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return frames[-1][0].f_code.co_name == "__torch_function__"


def _find_suspects(checker: CutChecker, traced: Traced) -> Sequence[int]:
    """Return each group that fails the test when no other group is cut. If none fails, return all groups."""
    alike: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for g, group in enumerate(traced.groups):
        # Repeated blocks run the same code. The names of their parameters differ only in a number.
        kind = tuple((re.sub(r"\d+", "#", entry.tensor), entry.dim) for entry in group.entries)
        alike.setdefault(kind, []).append(g)
    failing = []
    for groups in alike.values():
        if checker.find_failure(traced, groups[:1]):
            failing += groups
    everything = range(len(traced.groups))
    return failing or [g for g in everything if checker.find_failure(traced, [g])] or everything


def _pin_group(recorder: Recorder, traced: Traced, g: int, reason: str) -> None:
    """Exclude the units of a group from cuts."""
    entry = traced.groups[g].entries[0]
    start = sum(group.size for group in traced.groups[:g])
    units = traced.units[entry.tensor][entry.dim]
    mine = torch.from_numpy((units >= start) & (units < start + traced.groups[g].size))
    if entry.tensor in recorder.element_labels:
        labels = recorder.element_labels[entry.tensor].movedim(entry.dim, 0)[mine]
    else:
        labels = recorder.dim_labels[entry.tensor][entry.dim][mine]
    recorder.ties.pin(labels, reason)
