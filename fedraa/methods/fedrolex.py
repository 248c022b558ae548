"""FedRolex: a window of units that moves on every round (Alam et al. 2022, Algorithm 1).

Round t, client n with capacity r_n: trains ceil(r_n * K) units of every layer of K units, from unit t * stride on,
    wrapping around
Server: each weight <- mean of the clients that trained it

The number of units is rounded up, as in the authors' code; the paper rounds it down.

From scratch: examples/fedrolex_from_scratch.py.

Read next: submodels/policies/slices.py (`Rolling`), methods/heterofl.py (local training and the mean).
"""

from dataclasses import replace

from fedraa.composition.method import Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.methods.fedasync import async_variant
from fedraa.methods.heterofl import SLICED_TRAINING
from fedraa.server.round_update import Mean
from fedraa.submodels.policies.slices import Rolling

FEDROLEX = register(
    Method(
        name="fedrolex",
        paper="Alam et al. 2022",
        formula="As heterofl, with a window of units that moves on every round.",
        when="Unequal devices that cannot train the whole model: the window reaches every unit.",
        submodel=Rolling(),
        local=replace(SLICED_TRAINING, weight_decay=1e-3),
        update=Mean(owned_head=True),
        paper_settings=PaperSettings(
            source="authors' code, CIFAR-10",
            values={
                "lr": 2e-4,
                "lr_schedule": "steps:800,1200:0.25",
                "momentum": 0.9,
                "weight_decay": 1e-3,
                "clip": 1.0,
                "local_epochs": 1,
                "batch_size": 10,
                "weights": "uniform",
                "submodel.capacities.redraw": True,
            },
            client_fraction=0.1,
        ),
    )
)
register(async_variant(FEDROLEX))
