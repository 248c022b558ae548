"""The decisions of a server: tasks for clients, and the results of applied updates and failed tasks."""

from typing import NamedTuple


class Dispatch(NamedTuple):
    """The decision to give one task to one client.

    Attributes:
        task: Number of the task in the run, from 0.
        client: The client, from 0.
        turn: Number of earlier tasks of the client.
        fragment: The fragment, from 0. For sampled submodels, the label that their policy gives.
        version: Version of the fragment that is sent. At a synchronous server, the number of the round.
        step: Server step at dispatch.
        resent: True if the client trains the buffer of its last task again, so that the server sends nothing.
        feasible: Fragments that the client can train within the delay bound; empty without a scheduler.
        fragment_updates: Number of updates q(j) of each fragment [M] at the decision; empty without a scheduler.
    """

    task: int
    client: int
    turn: int
    fragment: int
    version: int
    step: int
    resent: bool = False
    feasible: tuple[int, ...] = ()
    fragment_updates: tuple[int, ...] = ()


class Staleness(NamedTuple):
    """Numbers of updates that the server applied between a task's dispatch and the arrival of its update.

    Attributes:
        fragment: Number of updates of the task's fragment.
        total: Number of updates of all fragments.
    """

    fragment: int
    total: int


class Committed(NamedTuple):
    """The result of an applied update.

    Attributes:
        dispatch: The dispatch of the task.
        version: Version of the fragment after the update. At a synchronous server, the version of the model after the
            round.
        staleness: Staleness of the update.
        next_clients: The clients that wait for a task now.
        round_complete: True if the round has all updates that it needs, or can get no more.
    """

    dispatch: Dispatch
    version: int
    staleness: Staleness
    next_clients: tuple[int, ...] = ()
    round_complete: bool = False


class Dropped(NamedTuple):
    """The result of a failed task.

    Attributes:
        dispatch: The dispatch of the task.
        action: "retry", "quarantined" or "stop".
        next_clients: The clients that wait for a task now.
        round_complete: True if the round has all updates that it needs, or can get no more.
    """

    dispatch: Dispatch
    action: str
    next_clients: tuple[int, ...] = ()
    round_complete: bool = False
