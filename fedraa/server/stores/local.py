"""The interface of a store, and the store that holds an asynchronous server's parameters in its process."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Protocol

from fedraa.components.calls import convert_errors
from fedraa.components.state import save_state
from fedraa.errors import InputError
from fedraa.messages import Buffer, Floats, Index, Mask, Shapes, SharedBuffer, State, Task, Update, Vector
from fedraa.privacy.noisy_sum import NoisySum
from fedraa.server.async_rule import ApplyResult, AsyncModel, AsyncRule, ClientUpdate
from fedraa.server.mixing import LocalMean, RunningMean
from fedraa.server.update_checks import refuse_unsound
from fedraa.submodels.assignment import Assignment, Submodel
from fedraa.vectors.chunked import copy_coordinates
from fedraa.vectors.finite import is_finite
from fedraa.vectors.index_ranges import IndexRanges, common_places, index_of, where_of

MakeSharedBuffer = Callable[[Vector], SharedBuffer]
"""A function that turns parameters into a buffer that several tasks can share.

An executor may put the buffer into memory that all workers can read.
"""


class Store(Protocol):
    """The owner of an asynchronous server's parameters.

    Each call sees all updates of earlier calls.
    """

    @property
    def params(self) -> Vector:
        """The current full model [d]."""

    def cut(self, assignment: Assignment, step: int) -> Buffer:
        """Return the submodel's parameters. Calls with the same submodel and server step return the same object.

        A new server step may give new parameters even if this fragment has no update, because some parameters are in
        all fragments.
        """

    def apply_update(
        self,
        task: Task,
        assignment: Assignment,
        update: Update,
        stale: int,
        balance: float = 1.0,
        path_length: float = 1.0,
    ) -> ApplyResult:
        """Apply the update of a client.

        Args:
            task: The task of the update.
            assignment: The submodel of the task.
            update: The update.
            stale: The update's staleness.
            balance: The client's participation correction.
            path_length: The distance that the weights would move if every gradient had length 1.
        """

    def drop(self, task: Task) -> None:
        """Discard the buffers of a failed task."""

    def leave(self, client: int) -> None:
        """Tell the rule that a client gets no more tasks."""

    def sent(self, tasks: Iterable[Task]) -> Mapping[int, Vector]:
        """Return the parameters that each task carries, by task number. Tasks with the same buffer share one array."""

    def sent_again(self, tasks: list[Task]) -> list[Task]:
        """Put the buffers of a checkpoint's tasks into this store. Return the tasks with the new buffers."""

    def mean(self) -> RunningMean:
        """Return a running mean of all later versions of the parameters. Call this method only once."""

    def state(self) -> State:
        """Return the state for a checkpoint, without the parameters."""

    def restore(self, params: Vector, state: State) -> None:
        """Restore the parameters and the state of a checkpoint. No task is in flight afterwards."""

    def report(self) -> list[dict[str, object]]:
        """Return a row for each server shard: its node, and how often workers fetched and sent parameters.

        Without shards, the list is empty.
        """


def shared_again(tasks: list[Task], make: Callable[[Task], Buffer]) -> list[Task]:
    """Return a checkpoint's tasks, with each task's array replaced by a buffer from `make`.

    Tasks of the same step and fragment with the same array get the same buffer.
    """
    buffers: dict[object, tuple[Vector, Buffer]] = {}
    again = []
    for task in tasks:
        cut = (task.step, task.fragment, task.widths)
        if cut not in buffers or buffers[cut][0] is not task.params:
            buffers[cut] = (task.params, make(task))
        again.append(replace(task, buffer=buffers[cut][1]))
    return again


def checked_apply(rule: AsyncRule, client_update: ClientUpdate, model: AsyncModel) -> ApplyResult:
    """Apply an update by a built-in or custom rule. Check the result and the model.

    The values of a new version are not checked if the rule has a `mixing_formula` or is `bounded_by_weight`, and the
    weight is at most 1.

    Args:
        rule: The rule.
        client_update: The update.
        model: The model that the rule changes.

    Raises:
        InputError: The result is not an ApplyResult with a finite weight and two bools, or the model is not finite.
    """
    with convert_errors("async_rule", rule):
        result = rule.apply_update(client_update, model)
    bools = isinstance(result, ApplyResult) and all(flag in (True, False) for flag in result[1:3])
    if not bools or not is_finite(result.weight):
        raise InputError(
            "async_rule",
            f"{type(rule).__name__} returned a wrong result",
            got=result,
            expected="ApplyResult(weight, new_version, keep_task) with a finite number and two bools",
        )
    if result.new_version and not ((rule.mixing_formula or rule.bounded_by_weight) and 0 <= result.weight <= 1):
        refuse_unsound("async_rule", rule, model.params, f" with the update of client {client_update.client}")
    return ApplyResult(float(result.weight), bool(result.new_version), bool(result.keep_task), result.unprotected)


def rule_state(rule: AsyncRule, params: Vector) -> State:
    """Return a rule's state for a checkpoint.

    Raises InputError if the rule put values that are not finite into the model without reporting a new version.
    """
    if rule.mixing_formula is None:
        refuse_unsound("async_rule", rule, params)
    return save_state(rule)


class LocalStore:
    """A store in this process. Within a server step, all tasks of a fragment share one copy of its parameters."""

    def __init__(  # noqa: PLR0913 - a call names its arguments
        self,
        params: Vector,
        fragments: Sequence[Submodel],
        rule: AsyncRule,
        sizes: Sequence[int],
        *,
        share: MakeSharedBuffer = SharedBuffer,
        at_a_time: int | None = None,
        shared: Mask | None = None,
        noisy_sum: NoisySum | None = None,
        tensors: Shapes = (),
        probabilities: Floats | None = None,
        full_weight: Mask | None = None,
        label_overlap: float = 1.0,
        hides_losses: bool = False,
    ) -> None:
        """Bind the rule to the model.

        Args:
            params: The model [d], which the rule changes in place.
            fragments: The fragments from which a scheduler chooses; empty if a submodel is drawn for every task.
            rule: Applies the updates.
            sizes: Number of samples of each client [N].
            share: Makes the buffers that tasks carry.
            at_a_time: Number of clients that train at the same time; None for all.
            shared: Mask [d] of the coordinates that clients send; None for all.
            noisy_sum: The clipping and the noise of central privacy; None without it.
            tensors: The shape of each tensor of the model.
            probabilities: The probability with which the server draws each client [N]; None if unknown.
            full_weight: Mask [d] of coordinates to which the rule's `shared_weight` does not apply; None for none.
            label_overlap: Mean overlap of a client's label frequencies with those of all clients; 1 if unknown.
            hides_losses: True if the rule receives no training losses, because privacy does not protect them.
        """
        self.params = params
        self._fragments = fragments
        self._noisy_sum = noisy_sum
        self._hides_losses = hides_losses
        release = None
        if noisy_sum is not None and rule.adds_noise:
            release = noisy_sum.release
        sent = None if shared is None else int(shared.sum())
        self._model = AsyncModel(
            params,
            clients=len(sizes),
            fragments=max(1, len(fragments)),
            at_a_time=at_a_time,
            tensors=tensors,
            probabilities=probabilities,
            sent=sent,
            label_overlap=label_overlap,
            release_noise=release,
        )
        self._rule = rule.bind(self._model)
        self._sizes = sizes
        self._share = share
        self._shared = shared
        if self._rule.shared_weight != 1 and fragments:
            indices = [self._sent_part(Assignment(0, part)).where for part in fragments]
            held = [None if isinstance(index, slice) else index for index in indices]
            common = common_places(held, len(params), full_weight)
            self._model = replace(self._model, common=common)
        self._cuts: dict[Submodel, SharedBuffer] = {}
        self._cuts_step = 0

    def cut(self, assignment: Assignment, step: int) -> Buffer:
        if step != self._cuts_step:
            self._cuts = {}
            self._cuts_step = step
        submodel = assignment.submodel
        if submodel not in self._cuts:
            values = copy_coordinates(self.params, where_of(submodel))
            with convert_errors("async_rule", self._rule):
                self._rule.look_ahead(values, where_of(submodel))
            # A read-only array needs no copy while a checkpoint is written.
            values.flags.writeable = False
            self._cuts[submodel] = self._share(values)
        return self._cuts[submodel]

    def apply_update(
        self,
        task: Task,
        assignment: Assignment,
        update: Update,
        stale: int,
        balance: float = 1.0,
        path_length: float = 1.0,
    ) -> ApplyResult:
        assignment = self._sent_part(assignment)
        where = where_of(assignment.submodel) if assignment.mask is None else assignment.where
        fragment = task.fragment if self._fragments else 0
        new = assignment.trained(update.params)
        sent = assignment.trained(task.params)
        if self._noisy_sum is not None:
            new = self._make_private(self._noisy_sum, new, sent, index_of(where), fragment)
        client_update = ClientUpdate(
            client=task.client,
            fragment=fragment,
            where=index_of(where),
            new=new,
            sent=sent,
            staleness=stale,
            samples=self._sizes[task.client],
            loss=inf if self._hides_losses else update.loss,
            balance=balance,
            steps=update.steps,
            path_length=path_length,
            runs=where if isinstance(where, IndexRanges) else None,
        )
        return checked_apply(self._rule, client_update, self._model)

    def _make_private(
        self, noisy_sum: NoisySum, new: Vector, sent: Vector, where: Index | slice, fragment: int
    ) -> Vector:
        """Return the trained weights [k] after clipping the delta and adding noise.

        No noise is added here for a rule that collects updates in a buffer and itself adds noise to each full buffer.

        Args:
            noisy_sum: The clipping and the noise.
            new: The trained weights [k].
            sent: The weights [k] that the client received.
            where: The coordinates of these weights in the model.
            fragment: The number of the fixed fragment; 0 for the whole model and for sampled submodels.
        """
        change = noisy_sum.clip(new - sent, where, fragment)
        if not self._rule.adds_noise:
            noise, _ = noisy_sum.release()
            change = change + noise[where]
        return sent + change

    def _sent_part(self, assignment: Assignment) -> Assignment:
        """Return the assignment without the coordinates that clients do not send."""
        if self._shared is None:
            return assignment
        return assignment.restrict(self._shared)

    def mean(self) -> RunningMean:
        return LocalMean(self)

    def drop(self, task: Task) -> None:
        pass

    def leave(self, client: int) -> None:
        with convert_errors("async_rule", self._rule):
            self._rule.leave(client)

    def sent(self, tasks: Iterable[Task]) -> Mapping[int, Vector]:
        return {task.id: task.params for task in tasks}

    def sent_again(self, tasks: list[Task]) -> list[Task]:
        return shared_again(tasks, lambda task: self._share(task.params))

    def state(self) -> State:
        state = rule_state(self._rule, self.params)
        if self._noisy_sum is None:
            return state
        return {"rule": state, "noisy_sum": save_state(self._noisy_sum)}

    def restore(self, params: Vector, state: State) -> None:
        self.params[:] = params
        if self._noisy_sum is not None:
            self._noisy_sum.restore(state["noisy_sum"])
            state = state["rule"]
        self._rule.restore(state)
        self._cuts = {}

    def report(self) -> list[dict[str, object]]:
        return []
