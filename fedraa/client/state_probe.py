"""Detection of state, besides the parameters, that a model changes in training or in evaluation.

The probe runs copies of the model on small batches, and compares the state of a copy before and after the run.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedraa.client.probe_values import (
    Results,
    are_alike,
    are_close,
    enlarge_values,
    fixed_generators,
    perturb_parameters,
    shift_values,
)
from fedraa.client.snapshot import Snapshot, is_same
from fedraa.client.training_state import TrainingState, freeze_ranges, is_quantiser
from fedraa.data.tree import Tree, list_leaves, map_tree, take_rows
from fedraa.errors import InputError
from fedraa.models.computed_weights import is_spectral
from fedraa.models.forward import forward
from fedraa.models.statistics import (
    Unsettled,
    copy_buffers,
    is_norm,
    put_buffers,
    reestimate_over,
)
from fedraa.submodels.tracing.accept import copy_private
from fedraa.submodels.tracing.recorder import iterate_tensors

MAX_PROBE_SAMPLES = 4
# Values for step counters, because a model may behave differently after a certain number of steps.
TRIED_STEP_COUNTS = (1, 10, 100, 1_000, 1_000_000)
# If a model has more parameters than this number, copies of the model share them.
LARGE_MODEL_PARAMETERS = 50_000_000


def probe_state(module: nn.Module, example: Tree, outputs: Callable[[Any], Tensor]) -> TrainingState:
    """Run copies of a module in training and evaluation mode. Return the state that they change.

    Args:
        module: The module with its weights. It is not changed.
        example: A batch of at least two samples, tensors [b, ...].
        outputs: A function that returns the output tensor in the module's result. The tensor has one row per sample.

    Raises:
        InputError: Training depends on state that clients do not send to the server, or evaluation depends on state
            that the saved model would lack.
    """
    with warnings.catch_warnings():
        # A model can warn about one sample or about changed buffers. The user's own run would not cause these warnings.
        warnings.simplefilter("ignore")
        return _Probe(module, example, outputs).result()


class _Probe:
    def __init__(self, module: nn.Module, example: Tree, outputs: Callable[[Any], Tensor]) -> None:
        self._large = sum(p.numel() for p in module.parameters()) > LARGE_MODEL_PARAMETERS
        self._module = perturb_parameters(copy_private(module, share=self._large))
        self._outputs = outputs
        self._kind = type(module).__name__
        rows = len(list_leaves(example)[0])
        # With at least four samples, the two batches have different samples. Otherwise both batches have all samples.
        first, second = slice(rows), slice(rows)
        if rows >= 4:
            half = min(MAX_PROBE_SAMPLES, rows // 2)
            first, second = slice(half), slice(half, 2 * half)
        self._batch = take_rows(example, first)
        self._other = map_tree(shift_values, take_rows(example, second))
        parts = dict(module.named_modules())
        owned = {name: parts[name.rpartition(".")[0]] for name in copy_buffers(module)}
        self._torchs = {name for name, part in owned.items() if is_norm(part)}
        self._spectral = {name for name, part in owned.items() if is_spectral(part)}
        self._known = self._spectral | {name for name in owned if _belongs_to_quantiser(parts, name)}

    def result(self) -> TrainingState:
        try:
            fresh = self._copy_module()
            self._start = self._take_snapshot(fresh)
            self._run_module(fresh, self._batch)
            self._run_module(fresh, map_tree(enlarge_values, self._batch))
        # The user's module can raise any exception. A later check reports it.
        except Exception:
            return TrainingState()
        self._after = self._take_snapshot(fresh)
        changed = self._start.changed(self._after)
        if changed["class_attributes"]:
            # Copies of the module share its class attributes, so comparing copies cannot show if training reads them.
            raise self._unsent_state_error("attribute", changed["class_attributes"][0])
        buffers = [name for name in changed["buffers"] if name not in self._torchs]
        attributes = changed["attributes"]
        if changed["frozen"]:
            raise self._unsent_state_error("parameter", changed["frozen"][0])
        state = TrainingState()
        if buffers or attributes:
            self._refuse_unsent_state(buffers, attributes)
            estimated, read = self._find_estimated(buffers, attributes)
            state = TrainingState(tuple(estimated), tuple(read), changes=tuple(buffers + attributes))
        warned: list[str] = []
        restored, dependent = self._probe_evaluation()
        if restored:
            warned.append(
                f"model: evaluation changes the {_name_value('buffer', restored[0], self._module)}; every batch of an "
                "evaluation starts from the same values"
            )
        if dependent:
            warned.append(
                f"model: in evaluation mode the output of {self._kind} for a sample depends on the other samples of "
                "the batch, as with track_running_stats=False; results depend on the batches of test samples"
            )
        return replace(
            state,
            restored=bool(restored),
            min_batch=self._smallest_batch(training=True),
            min_eval_batch=self._smallest_batch(training=False),
            warnings=tuple(warned),
        )

    def _copy_module(self) -> nn.Module:
        return copy_private(self._module, share=self._large)

    def _take_snapshot(self, module: nn.Module) -> Snapshot:
        return Snapshot.of(module, frozen=not self._large)

    def _run_module(self, module: nn.Module, batch: Tree, *, training: bool = True) -> Results:
        """Return the module's outputs for a batch and, in training mode, its gradients."""
        module.train(training)
        for p in module.parameters():
            p.grad = None
        with fixed_generators(module), torch.set_grad_enabled(training):
            result = forward(module, map_tree(lambda part: part.clone(), batch))
            outputs = [x for x in iterate_tensors(result) if isinstance(x, Tensor)]
            learnt = [x.square().mean() for x in outputs if x.requires_grad and x.is_floating_point()]
            if learnt:
                # torch leaves Tensor.backward untyped.
                torch.stack([x.float() for x in learnt]).sum().backward()
        return [x.detach() for x in outputs], [p.grad for p in module.parameters() if p.grad is not None]

    def _refuse_unsent_state(self, buffers: list[str], attributes: list[str]) -> None:
        """Raise InputError if a training step depends on buffers or attributes that earlier steps changed."""
        expected = self._run_module(self._copy_module(), self._other)
        known = {name: self._start.buffers[name] for name in self._known if name in self._start.buffers}
        later = self._copy_module()
        for _ in range(3):
            self._run_module(later, self._batch)
        put_buffers(later, known)
        depends = not are_alike(self._try_module(later), expected)
        constant = self._find_constants(buffers)
        tried = [name for name in buffers if name not in self._known | constant]
        counters = [name for name in attributes if isinstance(self._after.attributes[name], (int, float))]
        for values in self._iter_trial_values(tried, counters):
            depends = depends or not are_alike(self._try_module(self._copy_with(values)), expected)
        if not depends:
            return
        for name in tried:
            trials = list(self._iter_trial_values([name], []))
            if any(not are_alike(self._try_module(self._copy_with(values)), expected) for values in trials):
                raise self._unsent_state_error("buffer", name)
        for name in counters:
            trials = list(self._iter_trial_values([], [name]))
            if any(not are_alike(self._try_module(self._copy_with(values)), expected) for values in trials):
                raise self._unsent_state_error("attribute", name)
        # The result changes only if several values change together. The error names one of these values.
        if attributes and not tried:
            raise self._unsent_state_error("attribute", attributes[0])
        raise self._unsent_state_error("buffer", [*tried, *buffers][0])

    def _find_constants(self, buffers: Iterable[str]) -> set[str]:
        """Return the buffers that have the same values after every training step, for any data and parameters."""
        other = self._copy_module()
        for p in other.parameters():
            if p.requires_grad:
                p.data = p.data * 1.01
        self._run_module(other, self._other)
        first = self._take_snapshot(other).buffers
        self._run_module(other, self._batch)
        second = self._take_snapshot(other).buffers
        return {
            name
            for name in buffers
            if is_same(first.get(name), self._after.buffers[name]) and is_same(first.get(name), second.get(name))
        }

    def _iter_trial_values(self, buffers: list[str], counters: list[str]) -> Iterator[dict[str, Any]]:
        """Yield dicts of values that these buffers and counters might have after many training steps."""
        generator = torch.Generator().manual_seed(0)
        moved: dict[str, Any] = {}
        numbers = list(counters)
        for name in buffers:
            value = self._after.buffers[name]
            if value is None or value.dtype == torch.bool or value.is_complex():
                continue
            if value.is_floating_point() and value.numel():
                noise = torch.rand(value.shape, generator=generator) + 0.5
                moved[name] = value + (noise * (value.nan_to_num(0, 0, 0).abs().max() + 1)).to(value.dtype)
            if value.numel() == 1 or not value.is_floating_point():
                numbers.append(name)
        if moved:
            yield moved
        if numbers:
            for count in TRIED_STEP_COUNTS:
                yield {name: self._counter_at(name, count) for name in numbers}

    def _counter_at(self, name: str, count: int) -> Any:
        value = self._after.buffers.get(name)
        if value is None:
            return type(self._after.attributes[name])(count)
        if not value.is_floating_point():
            count = min(count, torch.iinfo(value.dtype).max)
        return torch.full_like(value, count)

    def _copy_with(self, values: Mapping[str, Any]) -> nn.Module:
        """Return a copy of the module whose buffers have the values that they have after training.

        `values` has other values for some buffers or attributes.
        """
        module = self._copy_module()
        changed = {name: value for name, value in self._after.buffers.items() if name not in self._known}
        put_buffers(module, changed | {name: value for name, value in values.items() if name in changed})
        parts = dict(module.named_modules(remove_duplicate=False))
        for name in values.keys() & self._after.attributes.keys():
            prefix, _, own = name.rpartition(".")
            setattr(parts[prefix], own, values[name])
        return module

    def _try_module(self, module: nn.Module, *, training: bool = True) -> Results | None:
        try:
            return self._run_module(module, self._other, training=training)
        # The user's module can raise any exception.
        except Exception:
            return None

    def _find_estimated(self, buffers: list[str], attributes: list[str]) -> tuple[list[str], list[str]]:
        """Return two lists of buffers. A run estimates the buffers of the first list before an evaluation.

        The second list has the buffers of the first list that the evaluation reads.
        """
        expected = self._try_module(self._copy_with({}), training=False)
        read = set(self._known & set(buffers))
        constant = self._find_constants(buffers)
        for name in buffers:
            trials = [*self._iter_trial_values([name], []), {name: self._start.buffers.get(name)}]
            if name not in constant and any(
                not are_alike(self._try_module(self._copy_with(values), training=False), expected) for values in trials
            ):
                read.add(name)
        lasting = self._copy_module().state_dict().keys()
        for name in buffers:
            if name in read and name not in lasting:
                raise InputError(
                    "model",
                    f"training changes the {_name_value('buffer', name, self._module)} and evaluation reads it, but "
                    "the state_dict lacks it",
                    hint="register it with persistent=True",
                )
        later = self._copy_module()
        self._run_module(later, self._batch)
        put_buffers(later, self._start.buffers)
        before = self._try_module(self._copy_module(), training=False)
        if attributes and not are_alike(self._try_module(later, training=False), before):
            raise InputError(
                "model",
                f"training changes the {_name_value('attribute', attributes[0], self._module)} and evaluation reads "
                "it, but the state_dict lacks it",
                hint="make it a buffer by register_buffer",
            )
        chosen = [name for name in buffers if name not in constant | self._spectral and name in lasting]
        return self._check_convergence(chosen, read)

    def _check_convergence(self, buffers: list[str], read: set[str]) -> tuple[list[str], list[str]]:
        """Pass one batch through the model repeatedly. Return the changed buffers and the subset that evaluation reads.

        Raise InputError if a buffer does not converge, or if evaluation reads a buffer that the passes never change.
        """
        module = self._copy_module()
        sample = map_tree(lambda part: part.numpy(), self._batch)
        try:
            reestimate_over(module, lambda: [sample], estimated=buffers, read=read)
        except Unsettled as error:
            raise InputError(
                "model",
                f"the server cannot compute the {_name_value('buffer', str(error), self._module)} for an evaluation, "
                "because it does not converge in repeated passes over the same samples",
                hint="replace its layer by a layer of torch, such as nn.BatchNorm1d",
            ) from None
        now = copy_buffers(module)
        moved = [
            name for name in buffers if name in self._known or not is_same(self._start.buffers.get(name), now[name])
        ]
        for name in buffers:
            if name in read and name not in moved:
                raise InputError(
                    "model",
                    f"evaluation reads the {_name_value('buffer', name, self._module)}, but only the backward pass "
                    "changes it, and clients do not send it",
                    hint="make it a parameter, or remove it",
                )
        return moved, [name for name in moved if name in read]

    def _probe_evaluation(self) -> tuple[list[str], bool]:
        """Return the buffers that evaluation changes, and True if outputs depend on other samples of the batch."""
        try:
            module = self._copy_module()
            freeze_ranges(module)
            before = self._take_snapshot(module)
            whole = self._run_module(module, self._batch, training=False)[0]
            after = self._take_snapshot(module)
            changed: list[str] = []
            if before.changed(after)["buffers"]:
                self._run_module(module, self._other, training=False)
                later = after.changed(self._take_snapshot(module))["buffers"]
                changed = [name for name in later if name not in self._known | self._torchs]
            fewer = self._copy_module()
            freeze_ranges(fewer)
            part = self._run_module(fewer, take_rows(self._batch, slice(2)), training=False)[0]
        # The user's module can raise any exception. A later check reports it.
        except Exception:
            return [], False
        rows = len(list_leaves(self._batch)[0])
        pairs = [(x[:2], y) for x, y in zip(whole, part, strict=False) if x.dim() and len(x) == rows and rows > 2]
        return changed, any(x.shape == y.shape and not are_close(x, y, 1e-3) for x, y in pairs)

    def _smallest_batch(self, *, training: bool) -> int:
        """Return the smallest batch size for which the module works, 1 or 2.

        The result is 1 if one sample gives one output row without an error. If the values of two samples are finite,
        those of one sample must be finite too.
        """
        try:
            pair_shape, pair_finite = self._output_shape(2, training=training)
        # The user's module can raise any exception. Then no batch works, and a later check reports the error.
        except Exception:
            return 1
        try:
            shape, finite = self._output_shape(1, training=training)
        # The user's module can raise any exception.
        except Exception:
            return 2
        same = shape == (1, *pair_shape[1:])
        return 1 if same and (finite or not pair_finite) else 2

    def _output_shape(self, rows: int, *, training: bool) -> tuple[tuple[int, ...], bool]:
        """Return the output's shape for `rows` samples, and True if outputs and gradients are finite."""
        module = self._copy_module()
        module.train(training)
        with fixed_generators(module), torch.set_grad_enabled(training):
            outputs = self._outputs(forward(module, map_tree(lambda part: part[:rows].clone(), self._batch)))
            finite = bool(outputs.isfinite().all())
            if training and outputs.requires_grad:
                # torch leaves Tensor.backward untyped.
                outputs.float().square().mean().backward()
                gradients = [p.grad for p in module.parameters() if p.grad is not None]
                finite = finite and all(bool(g.isfinite().all()) for g in gradients)
        return tuple(outputs.shape), finite

    def _unsent_state_error(self, what: str, name: str) -> InputError:
        return InputError(
            "model",
            f"training reads and changes the {_name_value(what, name, self._module)}, which clients do not send",
            hint="make it a parameter, or use only values of the batch",
        )


def _name_value(what: str, name: str, module: nn.Module) -> str:
    prefix, _, own = name.rpartition(".")
    part = dict(module.named_modules(remove_duplicate=False))[prefix]
    named = f"{what} {own!r} of {type(part).__name__}"
    return f"{named} ({prefix})" if prefix else named


def _belongs_to_quantiser(parts: Mapping[str, nn.Module], buffer: str) -> bool:
    prefix = buffer
    while prefix:
        prefix = prefix.rpartition(".")[0]
        if is_quantiser(parts[prefix]):
            return True
    return False
