"""Train the workload in bare PyTorch, with two processes that each train half of a round's clients."""

import multiprocessing
from multiprocessing.connection import Connection

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.system.peer_programs.peer_work import Work, now, report

State = dict[str, torch.Tensor]
PROCESSES = 2


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
    report(ends, work.accuracy(model))


def serve(pipe: Connection, work: Work) -> None:
    """For each request of the parent process, train the requested clients and send the sum of their models."""
    torch.set_num_threads(1)
    model = work.make_model()
    data = {client: work.client(client) for client in range(work.clients)}
    while True:
        request, clients = pipe.recv()
        initial = {name: torch.from_numpy(value) for name, value in request.items()}
        total = {name: torch.zeros_like(value) for name, value in initial.items()}
        for client in clients:
            model.load_state_dict(initial)
            optimizer = torch.optim.SGD(model.parameters(), lr=work.lr)
            x, y = data[client]
            for _ in range(work.epochs):
                for rows in torch.split(torch.randperm(len(y)), work.batch):
                    optimizer.zero_grad()
                    torch.autograd.backward([F.cross_entropy(model(x[rows]), y[rows])])
                    optimizer.step()
            for name, value in model.state_dict().items():
                total[name] += value
        pipe.send({name: value.numpy() for name, value in total.items()})


if __name__ == "__main__":
    main()
