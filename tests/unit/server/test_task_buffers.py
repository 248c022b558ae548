"""The buffers of tasks: remote values are not read, and shared buffers are one object, also after a checkpoint."""

import io
from dataclasses import replace

import numpy as np
import pytest

from fedraa.config.experiment import Experiment
from fedraa.engine.build import build_run
from fedraa.engine.factories import make_cost_model, make_server
from fedraa.engine.run_spec import RunSpec
from fedraa.ledger.dispatch import Dispatch
from fedraa.messages import RemoteBuffer, SharedBuffer, State, Task
from fedraa.rundir.checkpoint import read_state, write_state
from fedraa.server.local_rates import LocalRates
from fedraa.server.round_server import RoundServer
from fedraa.server.tasks import TaskTable
from fedraa.submodels.assignment import Assignment


def saved(state: State) -> State:
    """Return the state after a round trip through a file."""
    stream = io.BytesIO()
    write_state(stream, state)
    return read_state(stream.getvalue())


def spec_of(method: str) -> RunSpec:
    return build_run(Experiment(method=method, clients=4, hidden=(8,), engine="local"))


def discard_event(kind: str, t: float, /, **fields: object) -> None:
    """Discard an event."""


def test_remote_values_cannot_be_read_but_their_number_is_known() -> None:
    task = Task(7, 0, 0, 0, 0, 0, (), RemoteBuffer(5), 0.1, 1.0)
    assert (task.size, task.nbytes) == (5, 20)
    with pytest.raises(TypeError, match="task 7"):
        _ = task.params


@pytest.mark.parametrize("method", ["fed-raa", "fedasync", "fedavg", "fedcm", "scaffold"])
def test_tasks_share_one_buffer_before_a_checkpoint_and_after(method: str) -> None:
    spec = spec_of(method)
    first, second = make_server(spec, discard_event), make_server(spec, discard_event)
    for client in range(4):
        first.assign(client, 0.0)
    second.restore(saved(first.state()))
    for server in (first, second):
        tasks = [flight.task for flight in server.task_table.in_flight.values()]
        parts = {task.fragment: task.buffer for task in tasks}
        assert all(isinstance(task.buffer, SharedBuffer) for task in tasks)
        assert all(task.buffer is parts[task.fragment] for task in tasks)
    same_bits(first.task_table, second.task_table)
    if method == "fedcm":
        assert isinstance(first, RoundServer)
        tasks = [flight.task for flight in first.task_table.in_flight.values()]
        assert all(task.extras["momentum"] is tasks[0].extras["momentum"] for task in tasks)


def same_bits(table: TaskTable, other: TaskTable) -> None:
    assert table.in_flight.keys() == other.in_flight.keys()
    for number, flight in table.in_flight.items():
        ours, theirs = flight.task, other.in_flight[number].task
        assert ours.params.tobytes() == theirs.params.tobytes()
        assert [ours.extra_values(name).tobytes() for name in ours.extras] == [
            theirs.extra_values(name).tobytes() for name in theirs.extras
        ]


def test_checkpoint_keeps_and_restores_the_values_of_remote_buffers() -> None:
    spec = spec_of("fed-raa")

    def table() -> TaskTable:
        return TaskTable(
            spec.data.sizes.tolist(),
            make_cost_model(spec),
            discard_event,
            LocalRates("constant", lambda widths: 0.1, 1, 1),
            spec.timing,
        )

    first, part = table(), spec.submodels[1]
    values = part.take(spec.params)
    buffer = RemoteBuffer(values.size)
    decisions = [Dispatch(task=n, client=n, turn=0, fragment=1, version=0, step=0) for n in range(3)]
    for client in range(3):
        first.dispatch(decisions[client], 0.0, Assignment(1, part), buffer)
    with pytest.raises(TypeError):
        first.in_flight_state()
    state = saved({"in_flight": first.in_flight_state(dict.fromkeys(first.in_flight, values))})
    second, seen = table(), []

    def send(tasks: list[Task]) -> list[Task]:
        seen.extend(task.params for task in tasks)
        return [replace(task, buffer=buffer) for task in tasks]

    second.restore_in_flight(state["in_flight"], decisions, send)
    assert all(array is seen[0] for array in seen)
    np.testing.assert_array_equal(seen[0], values)
    assert [flight.task.buffer for flight in second.in_flight.values()] == [buffer] * 3
