"""FedAvg: average the models of a round's clients (McMahan et al. 2017, Algorithm 1).

Round:
    a cohort of clients receives theta                          # all clients, unless `participation` is set
    Client k: E epochs of minibatch SGD on f_k, from theta to w_k
    theta <- sum of n_k * w_k / sum of n_k                      # over the clients k that report; n_k: number of samples

The code adds the mean of the deltas w_k - theta to theta, which gives the same theta.

By default the local momentum is 0.5. The settings of the paper are in `paper_settings` below.

From scratch: examples/fed_avg_from_scratch.py.

Read next: server/round_server.py (the round and its step), ledger/round_ledger.py (the cohort),
aggregation/coverage_mean.py (the mean), client/local_algorithm.py (epochs and minibatches).
"""

from fedraa.composition.method import Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.server.round_update import Mean

register(
    Method(
        name="fedavg",
        paper="McMahan et al. 2017",
        formula="`theta ← Σ n_i w_i / Σ n_i` over the clients i of a round, with n_i samples.",
        when="Devices of about equal speed. It is the baseline of every paper.",
        update=Mean(weights="samples"),
        paper_settings=PaperSettings(
            source="McMahan et al. 2017, MNIST CNN",
            values={"momentum": 0.0, "local_epochs": 5, "batch_size": 10, "weights": "samples"},
            client_fraction=0.1,
            unstated="the learning rate, which the paper takes from a grid",
        ),
    )
)
