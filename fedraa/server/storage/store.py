"""Where an asynchronous server keeps its parameters: here, or whoever else can cut a fragment and mix one in."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from fedraa.components import saved
from fedraa.messages import Cut, State, Task, Update, Vector
from fedraa.server.async_rules import Arrival, AsyncModel, AsyncRule, Taken
from fedraa.submodels.assignment import Assignment, Submodel

Share = Callable[[Vector], Vector]


def stay(params: Vector) -> Vector:
    """Shares nothing: the buffer stays where it is."""
    return params


class Store(Protocol):
    """The parameters behind an asynchronous server; what is asked later sees all that was taken in before."""

    @property
    def params(self) -> Vector:
        """The full model [d] as it stands."""

    def cut(self, fragment: int, version: int) -> Cut:
        """The fragment as it stands; the same object as long as `version`, that of the model, is the same."""

    def take(self, task: Task, update: Update, stale: int) -> Taken:
        """Takes in the answer to a task."""

    def sent(self, tasks: Iterable[Task]) -> Mapping[int, Vector]:
        """The buffers of these tasks, by number, as far as they lie elsewhere; what tasks share is one array."""

    def sent_again(self, tasks: list[Task]) -> list[Task]:
        """The tasks that are out, from a checkpoint, with their buffers back where they lay."""

    def state(self) -> State:
        """What it has become besides the parameters."""

    def restore(self, params: Vector, state: State) -> None:
        """Become that, with no task out."""

    def report(self) -> list[dict[str, object]]:
        """For each server that it is spread over, if it is, its node and how often it was pulled from and pushed to."""


class LocalStore:
    """All in this process: one array per version of a fragment, and so one transfer, however many pull it."""

    def __init__(
        self,
        params: Vector,
        fragments: Sequence[Submodel],
        rule: AsyncRule,
        sizes: Sequence[int],
        share: Share = stay,
    ) -> None:
        """`sizes` [N] are the clients' samples; `share` puts a buffer where workers read it too."""
        self.params = params
        self._model = AsyncModel(params, len(sizes), len(fragments))
        self._rule, self._sizes, self._share = rule.bind(self._model), sizes, share
        self._assignments = [Assignment(j, submodel) for j, submodel in enumerate(fragments)]
        self._cuts: dict[int, tuple[int, Cut]] = {}

    def cut(self, fragment: int, version: int) -> Cut:
        if fragment not in self._cuts or self._cuts[fragment][0] != version:
            self._cuts[fragment] = (version, Cut(self._share(self._assignments[fragment].submodel.take(self.params))))
        return self._cuts[fragment][1]

    def take(self, task: Task, update: Update, stale: int) -> Taken:
        where = self._assignments[task.fragment].where
        arrival = Arrival(
            task.client,
            task.fragment,
            where,
            update.params,
            task.params,
            stale,
            self._sizes[task.client],
            update.loss,
        )
        taken = self._rule.take(arrival, self._model)
        if not isinstance(taken, Taken):
            raise ValueError(f"async_rule: {type(self._rule).__name__} gave {taken!r}; takes Taken(weight, advanced)")
        return taken

    def sent(self, tasks: Iterable[Task]) -> Mapping[int, Vector]:
        return {}

    def sent_again(self, tasks: list[Task]) -> list[Task]:
        return tasks

    def state(self) -> State:
        return saved(self._rule)

    def restore(self, params: Vector, state: State) -> None:
        self.params[:] = params
        self._rule.restore(state)
        self._cuts = {}

    def report(self) -> list[dict[str, object]]:
        return []
