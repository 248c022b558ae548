"""Functions that create a run's ClientSelector from the settings of its schedule."""

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass

import numpy as np

from fedraa.components.text import text_of
from fedraa.devices.availability import Timing
from fedraa.devices.costs import CostModel, Widths
from fedraa.errors import InputError
from fedraa.ledger.client_selector import ClientSelector
from fedraa.ledger.participation import NEXT_CLIENT, PARTICIPATION, Selection, count_of, needs_observations
from fedraa.ledger.routed_tasks import RoutedTasks
from fedraa.ledger.selection_context import ClientFacts
from fedraa.selection.routing import Routing
from fedraa.selection.simple import Uniform
from fedraa.server.partial_work import Deadline, RealPaces


def make_round_selector(
    source: object,
    find_facts: Callable[[], ClientFacts],
    *,
    clients: int,
    seed: int,
    over_selection: float,
    single_client_rounds: int,
) -> ClientSelector:
    """Return the client selector of a schedule in rounds.

    Args:
        source: The selection: a name, a name with arguments, an import path or an object.
        find_facts: Returns the facts about the clients.
        clients: Number of clients.
        seed: Seed of the run.
        over_selection: Factor by which a round starts more clients than it needs.
        single_client_rounds: Number of rounds at the start in which only the first client trains.

    Raises:
        InputError: A built-in selection has no number of clients per round, or the number is too large.
    """
    selection = PARTICIPATION.copy_for_run(source)
    count = count_of(selection)
    if needs_observations(selection) and _has_count(selection) and count is None:
        hint = "give the number, such as oort:10"
        raise InputError("participation", "it needs a number of clients per round", got=text_of(selection), hint=hint)
    if count is not None and count > clients:
        expected = f"at most {clients}, the number of clients"
        raise InputError("participation.count", got=count, expected=expected)
    facts = find_facts() if needs_observations(selection) else None
    return ClientSelector(
        selection,
        facts,
        clients=clients,
        seed=seed,
        over_selection=over_selection,
        single_client_rounds=single_client_rounds,
    )


def make_async_selector(
    source: object, find_facts: Callable[[], ClientFacts], *, clients: int, seed: int, concurrency: int | None
) -> ClientSelector | None:
    """Return the client selector of an asynchronous schedule, or None for the uniform choice and for routing.

    Args:
        source: The selection: a name, a name with arguments, an import path or an object.
        find_facts: Returns the facts about the clients.
        clients: Number of clients.
        seed: Seed of the run.
        concurrency: Number of clients that train at the same time, None for all.

    Raises:
        InputError: The selection is only for rounds, or all clients train at the same time.
    """
    selection = NEXT_CLIENT.copy_for_run(source)
    if isinstance(selection, Uniform) and selection.count is None:
        return None
    got = source if isinstance(source, str) else text_of(selection)
    if not needs_observations(selection) or selection.rounds_only:
        problem = "it chooses the clients of a round, and the method has no rounds"
        raise InputError("next_client", problem, got=got, hint="give uniform, oort or power-of-choice")
    if _has_count(selection) and count_of(selection) is not None:
        problem = "the method chooses one client whenever another has finished"
        hint = "give concurrency instead of the number"
        raise InputError("next_client", problem, got=got, hint=hint)
    if is_routing(selection):
        return None
    if concurrency is None or concurrency >= clients:
        problem = "all clients train at the same time, so that there is no choice"
        hint = "give a concurrency below the number of clients" if clients > 1 else "leave it out"
        raise InputError("next_client", problem, got=got, hint=hint)
    return ClientSelector(selection, find_facts(), clients=clients, seed=seed, field="next_client")


def make_routing(
    source: object, find_facts: Callable[[], ClientFacts], *, clients: int, seed: int, concurrency: int | None
) -> RoutedTasks | None:
    """Return the queues of tasks for the selection `routing`, or None for other selections.

    Args:
        source: The selection: a name, a name with arguments, an import path or an object.
        find_facts: Returns the facts about the clients.
        clients: Number of clients.
        seed: Seed of the run.
        concurrency: Number of tasks, None for the number of clients.
    """
    selection = NEXT_CLIENT.copy_for_run(source)
    if not is_routing(selection):
        return None
    assert isinstance(selection, Routing)
    tasks = min(clients, concurrency or clients)
    return RoutedTasks(selection.find_probabilities(find_facts().durations, tasks), tasks, seed)


def is_routing(source: object) -> bool:
    """Return True if the selection is the built-in Routing, which gives clients queues of tasks.

    The result is False for a subclass of Routing. Its queues would need custom code, which a replay does not run.
    """
    return type(NEXT_CLIENT.resolve(source)) is Routing


def make_deadline(duration: float | None, late: str, timing: Timing, *, wall: bool) -> Deadline | None:
    """Return the deadline of the rounds, or None if `duration` is None.

    Args:
        duration: Time from the start of a round to its deadline.
        late: `drop` to discard updates after the deadline, `partial` to train only as many steps as fit before it.
        timing: The timing model, which gives the duration of each task.
        wall: True on the wall clock.

    Raises:
        InputError: `late` is `partial`, and there is no deadline.
    """
    if duration is not None:
        paces = RealPaces() if wall and late == "partial" else None
        return Deadline(duration, late == "partial", timing, paces)
    if late == "partial":
        raise InputError("late", "it needs a deadline", got=late, hint="also give --deadline")
    return None


def make_facts(costs: CostModel, shapes: Sequence[Widths], samples: Sequence[int], timing: Timing) -> ClientFacts:
    """Return the facts about a run's clients.

    Args:
        costs: The costs of tasks.
        shapes: The submodels from which a scheduler chooses. Empty without a scheduler.
        samples: Number of training samples of each client.
        timing: The timing model, which gives the duration of each task.
    """
    return ClientFacts(np.array(samples, np.int64), costs.expected_durations(shapes), timing.find_start)


def _has_count(selection: Selection) -> bool:
    return is_dataclass(selection) and any(field.name == "count" for field in fields(selection))
