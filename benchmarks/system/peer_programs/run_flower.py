"""Train the workload in Flower's simulation, with two clients at the same time on Ray."""

from typing import Any

import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from benchmarks.system.bare import Settings, train_model
from benchmarks.system.peer_programs.peer_work import Work, now, report


def load(model: nn.Module, arrays: list[Any]) -> None:
    """Set the parameters of a model."""
    model.load_state_dict(dict(zip(model.state_dict(), map(torch.tensor, arrays), strict=True)))


class Client(NumPyClient):  # type: ignore[misc]
    """A client that trains with plain SGD."""

    def __init__(self, work: Work, client: int) -> None:
        self._work = work
        self._client = client

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        """Train the global model on the client's data, and return the trained parameters."""
        torch.set_num_threads(1)
        work = self._work
        model = work.make_model()
        load(model, parameters)
        x, y = work.client(self._client)
        train_model(model, x, y, Settings(work.epochs, work.batch, work.lr, momentum=0.0))
        return [value.numpy() for value in model.state_dict().values()], len(y), {}


class Timed(FedAvg):  # type: ignore[misc]
    """Flower's FedAvg, which also records when rounds end and keeps the last model."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.ends: list[float] = []
        self.last: list[Any] = []

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """Average the models of a round, and record the time.

        Args:
            server_round: The number of the round.
            results: The trained models of the clients.
            failures: The clients that failed.
        """
        parameters, metrics = super().aggregate_fit(server_round, results, failures)
        assert parameters is not None
        assert not failures
        self.last = parameters_to_ndarrays(parameters)
        self.ends.append(now())
        return parameters, metrics


def main() -> None:
    """Train all rounds. Report the time at which each round ended, and the final accuracy."""
    work = Work.read()
    model = work.make_model()
    strategy = Timed(
        fraction_fit=work.cohort / work.clients,
        fraction_evaluate=0.0,
        min_fit_clients=work.cohort,
        min_available_clients=work.clients,
        initial_parameters=ndarrays_to_parameters([value.numpy() for value in model.state_dict().values()]),
    )

    def make_client(context: Context) -> Any:
        return Client(work, int(context.node_config["partition-id"])).to_client()

    def make_server(context: Context) -> ServerAppComponents:
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=work.rounds))

    run_simulation(
        ServerApp(server_fn=make_server),
        ClientApp(client_fn=make_client),
        num_supernodes=work.clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}, "init_args": {"num_cpus": 2}},
    )
    load(model, strategy.last)
    report(strategy.ends, work.accuracy(model))


if __name__ == "__main__":
    main()
