"""Where an asynchronous server keeps its parameters: here, or whoever else can cut a fragment and mix one in."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from fedraa.components.calls import calling
from fedraa.components.state import saved
from fedraa.errors import InputError
from fedraa.messages import Buffer, SharedBuffer, State, Task, Update, Vector
from fedraa.server.async_rule import ApplyResult, AsyncModel, AsyncRule, ClientUpdate
from fedraa.server.running_mean import Mean, MeanHere
from fedraa.server.update_checks import refuse_unsound
from fedraa.submodels.assignment import Assignment, Submodel
from fedraa.vectors.chunked import cut
from fedraa.vectors.finite import is_finite
from fedraa.vectors.index_runs import IndexRuns, common_places, index_of, where_of

Share = Callable[[Vector], SharedBuffer]
"""Makes a buffer one that many tasks carry; an executor may keep it where workers read it, too."""


class Store(Protocol):
    """The parameters behind an asynchronous server; what is asked later sees all that was taken in before."""

    @property
    def params(self) -> Vector:
        """The full model [d] as it stands."""

    def cut(self, assignment: Assignment, version: int) -> Buffer:
        """Return the submodel's parameters; the same object as long as the model has the same version."""

    def apply_update(
        self, task: Task, assignment: Assignment, update: Update, stale: int, balance: float = 1.0
    ) -> ApplyResult:
        """Apply the update of a client.

        Args:
            task: The task that it answers.
            assignment: The submodel of the task.
            update: The update.
            stale: Its staleness.
            balance: The client's factor of data against speed.
        """

    def drop(self, task: Task) -> None:
        """The task has no answer."""

    def leave(self, client: int) -> None:
        """A client is left out from now on."""

    def sent(self, tasks: Iterable[Task]) -> Mapping[int, Vector]:
        """The buffers of these tasks, by number; what tasks share is one array."""

    def sent_again(self, tasks: list[Task]) -> list[Task]:
        """The tasks that are out, from a checkpoint, with their buffers back where this store keeps them."""

    def mean(self) -> Mean:
        """A mean over the parameters' versions from now on; there is one of them."""

    def state(self) -> State:
        """What it has become, less the parameters."""

    def restore(self, params: Vector, state: State) -> None:
        """Become that, with no task out."""

    def report(self) -> list[dict[str, object]]:
        """For each server that it is spread over, if it is, its node and how often it was pulled from and pushed to."""


def shared_again(tasks: list[Task], make: Callable[[Task], Buffer]) -> list[Task]:
    """Tasks from a checkpoint, whose buffers are arrays, with buffers as `make` makes them.

    Tasks of the same step and fragment that carry one array get one buffer.
    """
    made: dict[object, tuple[Vector, Buffer]] = {}
    again = []
    for task in tasks:
        cut = (task.step, task.fragment, task.widths)
        if cut not in made or made[cut][0] is not task.params:
            made[cut] = (task.params, make(task))
        again.append(replace(task, buffer=made[cut][1]))
    return again


def checked_apply(rule: AsyncRule, client_update: ClientUpdate, model: AsyncModel) -> ApplyResult:
    """Apply an update by a rule, which may be a custom one, and return the checked result.

    The model is checked for values that are not finite after a new version, except if a rule with guarantees mixed in
    a share of at most 1 of finite values.

    Raises:
        InputError: The result is not an ApplyResult of a finite number and two bools, or the model is not finite.
    """
    with calling("async_rule", rule):
        taken = rule.apply_update(client_update, model)
    bools = isinstance(taken, ApplyResult) and all(flag in (True, False) for flag in taken[1:])
    if not bools or not is_finite(taken.weight):
        raise InputError(
            "async_rule",
            f"{type(rule).__name__} returned a wrong result",
            got=taken,
            expected="ApplyResult(weight, new_version, keep_task) with a finite number and two bools",
        )
    if taken.new_version and not ((rule.is_convex_mix or rule.bounded_by_weight) and 0 <= taken.weight <= 1):
        refuse_unsound("async_rule", rule, model.params, f" with the update of client {client_update.client}")
    return ApplyResult(float(taken.weight), bool(taken.new_version), bool(taken.keep_task))


def rule_state(rule: AsyncRule, params: Vector) -> State:
    """A rule's state for a checkpoint; ValueError if it has left nonsense in the model and called that no version."""
    if not rule.is_convex_mix:
        refuse_unsound("async_rule", rule, params)
    return saved(rule)


class LocalStore:
    """All in this process: one array per version of a fragment, and so one transfer, however many pull it."""

    def __init__(
        self,
        params: Vector,
        fragments: Sequence[Submodel],
        rule: AsyncRule,
        sizes: Sequence[int],
        share: Share = SharedBuffer,
        at_a_time: int | None = None,
    ) -> None:
        """Bind the rule to the model.

        Args:
            params: The model [d], which the rule changes in place.
            fragments: The fragments that a scheduler gives out; none: a submodel is sampled for every task.
            rule: Applies the updates.
            sizes: Number of samples of each client [N].
            share: Makes the buffers that tasks carry.
            at_a_time: Number of clients that train at a time; None: all.
        """
        self.params = params
        self._fragments = fragments
        self._model = AsyncModel(params, len(sizes), max(1, len(fragments)), at_a_time)
        self._rule, self._sizes, self._share = rule.bind(self._model), sizes, share
        if self._rule.shared_weight != 1 and fragments:
            common = common_places([part.index for part in fragments], len(params))
            self._model = replace(self._model, common=common)
        self._cuts: dict[Submodel, SharedBuffer] = {}
        self._cuts_version = 0

    def cut(self, assignment: Assignment, version: int) -> Buffer:
        if version != self._cuts_version:
            self._cuts = {}
            self._cuts_version = version
        submodel = assignment.submodel
        if submodel not in self._cuts:
            values = cut(self.params, where_of(submodel))
            # A checkpoint need not copy what cannot change.
            values.flags.writeable = False
            self._cuts[submodel] = self._share(values)
        return self._cuts[submodel]

    def apply_update(
        self, task: Task, assignment: Assignment, update: Update, stale: int, balance: float = 1.0
    ) -> ApplyResult:
        where = where_of(assignment.submodel) if assignment.mask is None else assignment.where
        client_update = ClientUpdate(
            task.client,
            task.fragment if self._fragments else 0,
            index_of(where),
            assignment.trained(update.params),
            assignment.trained(task.params),
            stale,
            self._sizes[task.client],
            update.loss,
            balance,
            where if isinstance(where, IndexRuns) else None,
        )
        return checked_apply(self._rule, client_update, self._model)

    def mean(self) -> Mean:
        return MeanHere(self)

    def drop(self, task: Task) -> None:
        pass

    def leave(self, client: int) -> None:
        with calling("async_rule", self._rule):
            self._rule.leave(client)

    def sent(self, tasks: Iterable[Task]) -> Mapping[int, Vector]:
        return {task.id: task.params for task in tasks}

    def sent_again(self, tasks: list[Task]) -> list[Task]:
        return shared_again(tasks, lambda task: self._share(task.params))

    def state(self) -> State:
        return rule_state(self._rule, self.params)

    def restore(self, params: Vector, state: State) -> None:
        self.params[:] = params
        self._rule.restore(state)
        self._cuts = {}

    def report(self) -> list[dict[str, object]]:
        return []
