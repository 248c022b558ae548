"""HeteroFL: a client of capacity r trains the first share r of all units (Diao et al. 2021, Algorithm 1).

Client n, with capacity r_n: trains the first ceil(r_n * K) units of every layer of K units,
    with clipped gradients, static batch norm, and logits only of the labels that the client has
Server: each weight <- mean over the clients that trained it; the mean of a label's output row is only over the clients
    that have samples with this label

In the paper, a scaler after each layer divides the activations of a submodel by r_n in training. Here the scaler is a
layer of the model, and of the built-in models only resnet18-scaler has it. A norm after the scaler undoes its effect.

Read next: submodels/policies/slices.py (`Prefix`), aggregation/coverage_mean.py (the mean),
aggregation/label_owners.py (the output rows), methods/fedavg.py (the round).
"""

from fedraa.client.local_training import LocalTraining
from fedraa.composition.method import Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.methods.fedasync import async_variant
from fedraa.server.round_update import Mean
from fedraa.submodels.policies.slices import Prefix

SLICED_TRAINING = LocalTraining(momentum=0.9, weight_decay=5e-4, clip=1.0, label_masked=True)

HETEROFL = register(
    Method(
        name="heterofl",
        paper="Diao et al. 2021",
        note="of the built-in models, only resnet18-scaler scales the activations of submodels, as the paper does",
        formula=(
            "A client of capacity r trains the first share r of all units; each weight becomes the mean over the "
            "clients that trained it."
        ),
        when="Unequal devices, if a small model is needed besides the large one: the first units form it.",
        submodel=Prefix(),
        local=SLICED_TRAINING,
        update=Mean(owned_head=True),
        paper_settings=PaperSettings(
            source="authors' code, CIFAR-10, IID",
            values={
                "lr": 0.1,
                "lr_schedule": "steps:150,250:0.1",
                "momentum": 0.9,
                "weight_decay": 5e-4,
                "clip": 1.0,
                "local_epochs": 5,
                "batch_size": 10,
                "weights": "uniform",
            },
            client_fraction=0.1,
        ),
    )
)
register(async_variant(HETEROFL))
