"""Train the workload in bare PyTorch, with two processes.

Each process trains half of a round's clients. In an asynchronous workload, each process trains one client at a time.
"""

import multiprocessing
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait

import numpy as np
import torch

from benchmarks.system.bare import Settings, train_model
from benchmarks.system.peer_programs.peer_work import Work, now, report

State = dict[str, torch.Tensor]
PROCESSES = 2
# FedAsync's weight of an update with staleness 0. The weight decreases with the square root of the staleness + 1.
WEIGHT = 0.6


def main() -> None:
    """Train all rounds. Report the time at which each round ended, and the final accuracy."""
    torch.set_num_threads(1)
    work = Work.read()
    model = work.make_model()
    context = multiprocessing.get_context("spawn")
    pipes = []
    for _ in range(PROCESSES):
        ours, theirs = context.Pipe()
        context.Process(target=serve, args=(theirs, work), daemon=True).start()
        pipes.append(ours)
    train = train_asynchronously if work.asynchronous else train_rounds
    ends = train(work, model, pipes)
    report(ends, work.accuracy(model))


def train_rounds(work: Work, model: torch.nn.Module, pipes: Sequence[Connection]) -> list[float]:
    """Train all rounds of FedAvg. Return the times at which they ended."""
    rng = np.random.default_rng(0)
    ends = []
    for _ in range(work.rounds):
        cohort = work.draw_cohort(rng)
        state = {name: value.numpy() for name, value in model.state_dict().items()}
        for number, pipe in enumerate(pipes):
            pipe.send((state, cohort[number::PROCESSES]))
        sums = [pipe.recv() for pipe in pipes]
        mean = {name: torch.from_numpy(sum(part[name] for part in sums)) / len(cohort) for name in state}
        model.load_state_dict(mean)
        ends.append(now())
    return ends


def train_asynchronously(work: Work, model: torch.nn.Module, pipes: Sequence[Connection]) -> list[float]:
    """Mix each trained model into the global model at once, as FedAsync does. Return the times of the round ends.

    All clients have a task at any time. A process trains the oldest task.
    """
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    tasks = deque((client, 0, state) for client in range(work.clients))
    # The client and the version of the task that each process trains.
    in_progress: dict[Connection, tuple[int, int]] = {}

    def send_oldest_task(pipe: Connection) -> None:
        client, version, received = tasks.popleft()
        pipe.send((received, [client]))
        in_progress[pipe] = (client, version)

    for pipe in pipes:
        send_oldest_task(pipe)
    ends = []
    for step in range(work.rounds * work.cohort):
        ready = wait(pipes)[0]
        assert isinstance(ready, Connection)
        trained = ready.recv()
        client, version = in_progress[ready]
        weight = WEIGHT * (1 + step - version) ** -0.5
        state = {name: (1 - weight) * value + weight * trained[name] for name, value in state.items()}
        tasks.append((client, step + 1, state))
        send_oldest_task(ready)
        if (step + 1) % work.cohort == 0:
            ends.append(now())
    model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    return ends


def serve(pipe: Connection, work: Work) -> None:
    """For each request of the parent process, train the requested clients and send the sum of their models."""
    torch.set_num_threads(1)
    model = work.make_model()
    settings = Settings(work.epochs, work.batch, work.lr, momentum=0.0)
    data = {client: work.client(client) for client in range(work.clients)}
    while True:
        request, clients = pipe.recv()
        initial = {name: torch.from_numpy(value) for name, value in request.items()}
        total = {name: torch.zeros_like(value) for name, value in initial.items()}
        for client in clients:
            model.load_state_dict(initial)
            train_model(model, *data[client], settings)
            for name, value in model.state_dict().items():
                total[name] += value
        pipe.send({name: value.numpy() for name, value in total.items()})


if __name__ == "__main__":
    main()
