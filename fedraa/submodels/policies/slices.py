"""Policies in which clients train the whole model, its first layers, or some units of every width group."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Literal

from pydantic import NonNegativeInt

from fedraa.errors import Uncuttable
from fedraa.numbers import Count, Positive
from fedraa.rng import generator
from fedraa.submodels import indices
from fedraa.submodels.assignment import Assignment
from fedraa.submodels.flat import layer_of
from fedraa.submodels.policies.policy import (
    Capacities,
    Pure,
    RoundContext,
    RunContext,
    SubmodelPolicy,
    SubmodelSampler,
    WithCapacities,
)
from fedraa.submodels.traced import IndexSet, Traced

# The fraction of hidden units in each fragment, by the number of fragments (Fed-RAA, Table 4).
FRAGMENT_RATIOS = {
    1: (1.0,),
    2: (0.4, 0.6),
    3: (0.2, 0.3, 0.5),
    4: (0.1, 0.2, 0.3, 0.4),
    5: (0.05, 0.1, 0.2, 0.3, 0.35),
}
DEFAULT_FRAGMENTS = 4
RECURRENT_FRAGMENTS = 2
# The value of `Fragments.ratios` with which their number depends on the model.
BY_MODEL: Literal["auto"] = "auto"
# The reason for which `Fragments.choose_groups` leaves a group out.
TOO_FEW_UNITS = "fragments would have too few of its units"


@dataclass(frozen=True)
class Full(SubmodelPolicy):
    """Every client trains the full model."""

    whole: ClassVar[bool] = True

    def bind(self, run: RunContext) -> SubmodelSampler:
        assignment = Assignment(0, run.whole())
        return Pure(lambda context: assignment)


@dataclass(frozen=True)
class Fragments(SubmodelPolicy):
    """Fed-RAA: fixed fragments of the model with different units, which a scheduler assigns to clients.

    Parameters without a hidden unit, such as the biases of the output layer, are in every fragment.

    Attributes:
        ratios: The fraction of hidden units in each fragment; auto for four equal fragments, or two for a model with a
            recurrent layer of PyTorch (four would keep only a quarter of its weights from state to state). A subclass
            gets the fractions from `choose_ratios`.
        min_units: The smallest number of units, such as attention heads, of a divided layer in each fragment. Layers
            with fewer units stay whole: every fragment contains them. If all layers are too small, all are divided.
        min_embedding_units: The same number for embeddings, whose units are the elements of an embedded vector.
    """

    ratios: tuple[Positive, ...] | Literal["auto"]
    min_units: Count = 1
    min_embedding_units: Count = 1

    keeps: ClassVar[str] = "q(j) [M]"
    scheduled: ClassVar[bool] = True

    @property
    def cuts(self) -> bool:
        return self.ratios == BY_MODEL or len(self.ratios) > 1

    def choose_ratios(self, traced: Traced) -> tuple[float, ...]:
        """Return the fraction of hidden units in each fragment of the traced model."""
        if self.ratios != BY_MODEL:
            return self.ratios
        count = RECURRENT_FRAGMENTS if traced.is_recurrent else DEFAULT_FRAGMENTS
        return (1 / count,) * count

    def choose_groups(self, traced: Traced) -> Traced:
        """Return the traced model without the width groups of which a fragment would have too few units.

        If all groups have too few units, the result has all groups.
        """
        embeddings, ratios = traced.embeddings(), self.choose_ratios(traced)
        kept = set()
        for group in traced.groups:
            embeds = any(layer_of(entry.tensor) in embeddings for entry in group.entries)
            least = self.min_embedding_units if embeds else self.min_units
            if least == 1 or min(indices.divide_units(group.size, ratios)) >= least:
                kept.add(group.name)
        if len(kept) in (0, len(traced.groups)):
            return traced
        return traced.keep_groups(kept, TOO_FEW_UNITS)

    def submodels(self, traced: Traced) -> tuple[IndexSet, ...]:
        if self.cuts and not traced.groups:
            reasons = traced.explain_uncut()
            problem = f"no part of {type(traced.module).__name__} can be cut into fragments: {reasons}"
            raise Uncuttable("model", problem)
        return indices.make_fragments(traced, self.choose_ratios(traced))


@dataclass(frozen=True)
class Prefix(WithCapacities):
    """HeteroFL: a client trains the first ceil(r K) units of every group of K units.

    Attributes:
        capacities: The fraction r of the units that each client trains.
    """

    capacities: Capacities = field(default_factory=Capacities)

    def bind(self, run: RunContext) -> SubmodelSampler:
        run.check_units()
        assignments: dict[float, Assignment] = {}

        def draw_assignment(context: RoundContext) -> Assignment:
            ratio = self.capacities.of(context.client, context.round, run.seed)
            if ratio not in assignments:
                assignments[ratio] = run.units(indices.take_prefix(run.traced, ratio))
            return assignments[ratio]

        return Pure(draw_assignment)


@dataclass(frozen=True)
class Rolling(WithCapacities):
    """FedRolex: a client trains ceil(r K) consecutive units of every group. The first unit moves in each round.

    Attributes:
        capacities: The fraction r of a group's K units that each client trains.
        stride: Number of units by which the first unit moves in each round.
    """

    capacities: Capacities = field(default_factory=lambda: Capacities(redraw=True))
    stride: NonNegativeInt = 1

    def bind(self, run: RunContext) -> SubmodelSampler:
        run.check_units()

        def draw_assignment(context: RoundContext) -> Assignment:
            ratio = self.capacities.of(context.client, context.round, run.seed)
            start = context.round * self.stride
            return run.units(indices.take_window(run.traced, ratio, start), start)

        return Pure(draw_assignment)


@dataclass(frozen=True)
class DisjointGroups(SubmodelPolicy):
    """IST: each round divides the hidden units at random among the clients of the cohort.

    During training, a unit reads only units of the same client, so its input is smaller. `scaled` compensates for this:
    it multiplies activations by the size of the cohort, and divides the learning rate by this size. In the paper's
    released code, batch norms compensate for the smaller inputs.

    Attributes:
        scaled: True to scale activations and the learning rate.
    """

    scaled: bool = True

    @property
    def scales(self) -> bool:
        return self.scaled

    def bind(self, run: RunContext) -> SubmodelSampler:
        # The division of the units is the same for all clients of a round, so it is computed once per round.
        @lru_cache(1)
        def deal_groups(number: int, cohort: int) -> tuple[IndexSet, ...]:
            problem = "each client of a round needs a different unit of every group"
            run.check_parts(cohort, "clients", problem, got=cohort)
            return indices.deal_disjoint(run.traced, cohort, generator(run.seed, "groups", number))

        def draw_assignment(context: RoundContext) -> Assignment:
            groups = deal_groups(context.round, context.cohort)
            return run.units(groups[context.position], context.position)

        return Pure(draw_assignment)


@dataclass(frozen=True)
class LayerCut(SubmodelPolicy):
    """SplitFed: the client holds the first layers of the model, and the server holds the rest.

    Attributes:
        layers: Number of layers that the client holds.
        server_compute: Speed of the server as a multiple of the speed of the fastest device.
    """

    whole: ClassVar[bool] = True
    layers: Count = 2
    server_compute: Positive = 10.0

    def bind(self, run: RunContext) -> SubmodelSampler:
        return Full().bind(run)
