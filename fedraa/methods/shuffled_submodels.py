"""Bernoulli and shuffled submodels: random masks, and the blocks of a fixed split in random order (arXiv 2511.06132).

Bernoulli (Algorithm 1): every weight is in the mask of client n with probability p_n, drawn for every round
Shuffled (Algorithm 2):  the weights are split once into blocks; every round of a cycle trains another block, in a
    random order, which is the same for all clients of equal capacity
Server (both): theta <- mean over all participants; a client that did not train a weight counts with the old value

In the paper's algorithms, all clients train in every round, and theta is projected onto a bounded set. Here a client
that is not in the cohort of a round misses the block of the round, and theta is not projected. The paper's network has
static batch norm, and a scaler after every convolution. In models without norm, `local.scale_activations` has a similar
effect.

Read next: submodels/policies/shuffled.py (the masks), aggregation/coverage_mean.py (`FilledMean`), methods/fedavg.py
(the round).
"""

from dataclasses import replace

from fedraa.aggregation.coverage_mean import FilledMean
from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.methods.fedasync import async_variant
from fedraa.server.round_update import Mean
from fedraa.submodels.policies.shuffled import Bernoulli, ShuffledBlocks

_NO_PROJECTION = "weights are not projected onto a bounded set"
_NO_SCALER = "activations are not rescaled"
_MISSED = "a client that is not in a round misses the block of the round"

BERNOULLI = register(
    Method(
        name="bernoulli",
        paper="Shuffled submodels, Algorithm 1",
        note=_NO_PROJECTION,
        formula=(
            "Each weight is trained with probability p, drawn again for every client and round; the mean is over all "
            "participants, and a client that did not train a weight counts with the old value."
        ),
        when="To study random masks; they save no computing, because no unit is left out.",
        submodel=Bernoulli(),
        local=PLAIN_SGD,
        update=Mean(aggregator=FilledMean()),
        paper_settings=PaperSettings(
            source="shuffled submodels, Appendix B",
            client_fraction=0.1,
            unstated="learning rates, local steps, batch sizes",
        ),
    )
)
register(
    replace(
        BERNOULLI,
        name="bernoulli-kernels",
        variant_of="bernoulli",
        note=f"{_NO_PROJECTION}; {_NO_SCALER}; the number of units is not random",
        formula="As bernoulli, with whole units drawn: ⌈p K⌉ of the K units of each group.",
        when="As bernoulli, but with small submodels that save computing.",
        submodel=Bernoulli(kernels=True),
    )
)
register(async_variant(BERNOULLI))
SHUFFLED = register(
    replace(
        BERNOULLI,
        name="shuffled",
        paper="Shuffled submodels, Algorithm 2",
        note=f"{_NO_PROJECTION}; {_MISSED}",
        formula="A fixed split into blocks; each block is trained once per cycle, in a random order.",
        when="To compare shuffling with drawing with replacement; masks save no computing.",
        submodel=ShuffledBlocks(),
    )
)
register(
    replace(
        SHUFFLED,
        name="shuffled-kernels",
        variant_of="shuffled",
        note=f"{_NO_PROJECTION}; {_NO_SCALER}; {_MISSED}; every layer has its own order",
        formula="As shuffled, with blocks of units.",
        when="As shuffled, but with small submodels that save computing.",
        submodel=ShuffledBlocks(kernels=True),
    )
)
