"""What each method's paper states of how it is run: flags and their values, and what it leaves open.

Of several settings in a paper it is the one that `source` names. What a paper leaves open is as given for all methods.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class PaperTerms:
    """`values` are fields of an experiment; with a `share`, that part of all clients is drawn for every round."""

    source: str
    values: Mapping[str, Any] = field(default_factory=dict)
    share: float | None = None
    leaves_open: str = ""

    def of(self, clients: int) -> dict[str, Any]:
        """The fields for so many clients."""
        drawn = {} if self.share is None else {"participation": f"sample:{max(1, round(self.share * clients))}"}
        return dict(self.values) | drawn


_RAA = PaperTerms(
    "Fed-RAA, Section 5, MNIST and CIFAR-10",
    {"lr": 0.005, "momentum": 0.5, "local_epochs": 5, "batch_size": 128},
    leaves_open="mixing, staleness weight, proximal weight, fragments of the main tables",
)
_RAM = PaperTerms(
    "RAM-Fed, Section 6, MNIST",
    {"lr": 0.01, "momentum": 0.5, "local_steps": 5, "batch_size": 128},
    leaves_open="rounds, first memory",
)
_SHARPNESS = {
    "lr": 0.1,
    "momentum": 0.0,
    "local_epochs": 10,
    "batch_size": 128,
    "participation": "bernoulli:0.2",
    "sam": 0.5,
    "weights": "uniform",
    "server_lr": 1.0,
}
_SHARP = "FedSAM, Section 6, CIFAR-10"
_SHUFFLED = PaperTerms("shuffled submodels, Section 5", share=0.1, leaves_open="rates, local work, batches")
_THEORY = "one local step, as in the paper's theory"
_NOBODYS = PaperTerms("no paper's")
_ADAPTIVE = PaperTerms("Reddi et al. 2021", {"momentum": 0.0}, leaves_open="rates, which it takes from a grid")

PAPERS: dict[str, PaperTerms] = {
    **dict.fromkeys(("fed-raa", "fed-raa-random", "fed-raa-mp", "fed-raa-offline", "fed-raa-sync"), _RAA),
    "fed-quilt": PaperTerms("our own: no paper's"),
    "fedasync": PaperTerms(
        "Xie et al. 2019, CIFAR-10",
        {"lr": 0.1, "batch_size": 50, "proximal": 0.005, "mixing": 0.6, "momentum": 0.0},
        leaves_open="one of its mixings, .6 and .9",
    ),
    "fedbuff": PaperTerms(
        "authors' code, sent140; its sum over 10 at .7 is a mean at 7",
        {
            "lr": 0.1,
            "momentum": 0.0,
            "batch_size": 32,
            "local_epochs": 1,
            "buffer_size": 10,
            "server_optimizer": "momentum(server_lr=7.0, beta=0.9)",
        },
    ),
    "ca2fl": PaperTerms("Wang et al. 2024", {"buffer_size": 10, "momentum": 0.0}, leaves_open="the rates of its grid"),
    "ace": PaperTerms(_THEORY, {"local_steps": 1, "momentum": 0.0}, leaves_open="rates"),
    "ringmaster": PaperTerms(_THEORY, {"local_steps": 1, "momentum": 0.0}, leaves_open="rate, and R of its grid"),
    "delay-adaptive": PaperTerms(_THEORY, {"local_steps": 1, "momentum": 0.0}, leaves_open="rate"),
    "ringleader": PaperTerms(
        "Maranjyan, Richtarik 2026, MNIST",
        {"local_steps": 1, "momentum": 0.0, "batch_size": 4},
        leaves_open="the rate of its sweep",
    ),
    "fadas": PaperTerms(
        "authors' code, CIFAR-10, delay-adaptive",
        {
            "lr": 0.1,
            "momentum": 0.0,
            "weight_decay": 1e-4,
            "local_epochs": 2,
            "batch_size": 50,
            "buffer_size": 5,
            "server_lr": 1e-3,
            "delay_limit": 1,
        },
    ),
    "asyncfeded": PaperTerms("Wang et al. 2022", leaves_open="all that is not its rule"),
    "fedavg": PaperTerms(
        "McMahan et al. 2017, MNIST CNN",
        {"momentum": 0.0, "local_epochs": 5, "batch_size": 10, "weights": "samples"},
        share=0.1,
        leaves_open="the rate of its grid",
    ),
    "fedprox": PaperTerms(
        "authors' script",
        {"lr": 0.01, "momentum": 0.0, "local_epochs": 20, "batch_size": 10, "weights": "samples"},
        leaves_open="proximal weight, of .001, .01, .1, 1",
    ),
    "scaffold": PaperTerms(
        "Karimireddy et al. 2020", {"momentum": 0.0, "server_lr": 1.0}, leaves_open="the local rate of its grid"
    ),
    "fedavgm": PaperTerms("Hsu, Qi, Brown 2019", leaves_open="the rates of its grid"),
    **dict.fromkeys(("fedadam", "fedyogi", "fedadagrad"), _ADAPTIVE),
    "fedrobust": PaperTerms("authors' code, CIFAR-10", {"lr": 1e-3, "momentum": 0.0, "batch_size": 50}),
    "fedcm": PaperTerms(
        "FL-Simulator",
        {"lr": 0.1, "lr_schedule": "exponential:0.998", "momentum": 0.0, "fresh": 0.1, "server_lr": 1.0},
    ),
    "mimelite": PaperTerms(
        "FedSAM, Section 6; fedjax", {"momentum": 0.0, "fresh": 0.1, "server_lr": 1.0, "weights": "samples"}
    ),
    "fedsam": PaperTerms(_SHARP, _SHARPNESS),
    "mofedsam": PaperTerms(_SHARP, _SHARPNESS | {"fresh": 0.1}),
    "prunefl": PaperTerms(
        "authors' code, CIFAR-10",
        {"lr": 0.1, "momentum": 0.0, "local_steps": 5, "batch_size": 20, "reprune_every": 50, "weights": "samples"},
    ),
    "splitfed": PaperTerms(
        "authors' code", {"local_epochs": 1, "batch_size": 256}, leaves_open="clients here have SGD, the paper's Adam"
    ),
    "ist": PaperTerms("authors' code", {"lr": 0.01, "local_steps": 20, "batch_size": 128}),
    "oap": PaperTerms("Zhou et al. 2024", {"capacities": (1.0, 0.75, 0.5)}, leaves_open="rate, batch"),
    "heterofl": PaperTerms(
        "authors' code, CIFAR-10",
        {
            "lr": 0.1,
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "clip": 1.0,
            "local_epochs": 5,
            "batch_size": 10,
            "weights": "uniform",
        },
        share=0.1,
    ),
    "fedrolex": PaperTerms(
        "authors' code, CIFAR-10",
        {
            "lr": 2e-4,
            "lr_schedule": "steps:800,1200:0.25",
            "momentum": 0.9,
            "weight_decay": 1e-3,
            "clip": 1.0,
            "local_epochs": 1,
            "batch_size": 10,
            "weights": "uniform",
            "redraw": True,
        },
        share=0.1,
    ),
    "hetlora": PaperTerms("Cho et al. 2024", leaves_open="ranks, rates, local work"),
    "flora": PaperTerms(
        "authors' code",
        {
            "lr": 3e-4,
            "local_epochs": 1,
            "batch_size": 128,
            "capacities": (1.0, 0.5, 0.25, 0.25, 0.125, 0.125, *[0.0625] * 4),  # ranks 64 to 4
            "weights": "samples",
        },
    ),
    "fedgmr": PaperTerms(
        "release of the authors", {"capacities": (1.0, 0.5, 0.2, 0.1, *[0.05] * 6)}, leaves_open="rates, batches"
    ),
    **dict.fromkeys(("heterofl-async", "fedrolex-async", "bernoulli-async"), _NOBODYS),
    **dict.fromkeys(("ra-fed", "ram-fed", "ram-fed-mifa", "ra-fed-units", "ram-fed-units"), _RAM),
    "subdismo": PaperTerms(
        "SubDisMO, Section 5, CIFAR-10", {"sam": 0.1, "momentum": 0.0}, leaves_open="both rates, local work, batch"
    ),
    **dict.fromkeys(("bernoulli", "bernoulli-kernels", "shuffled", "shuffled-kernels"), _SHUFFLED),
}


def paper_of(method: str) -> PaperTerms:
    """The terms of a method's paper; of a crossing `a+b` those of b, whose local solver it has.

    ValueError, one sentence, for an own method: nobody has stated any.
    """
    name = method.partition("+")[2] or method
    if name not in PAPERS:
        raise ValueError(f"terms: {method} is of no paper; take equal or tuned, or leave it out")
    return PAPERS[name]
