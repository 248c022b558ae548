"""Fed-Quilt: equal fragments, short tasks, and a server that takes Muon steps (fedraa's own method; no paper).

The model is cut into M equal fragments: four, or two if it has recurrent layers. A layer with too few units, such as
four attention heads, stays whole: each fragment contains it. Weights between two fragments are 0. At the start, the
other weights of each unit are multiplied, so that their norm is that of all weights of the unit. When client n is idle:
    j = the fragment for which the fewest tasks were sent
    send theta_j
Client n: SGD with clipping and calibrated logits, for H local steps: one, or so many that training takes at least
    about as long as the download and the upload of theta_j, but at most 15 o / (1 - o); if H > 1,
    c = cos(change of theta_j in the first half of the steps, change of theta_j in the second half),
        within limits that follow from the relative change of weight matrices;
    embeddings take steps of Adam
When (j, delta) arrives:
    a = min(1, server_gain * M / N) * s(staleness)         # of the N clients at work, about N / M train fragment j
    if H <= 7, on weight matrices:
        g = max(1, number of such deltas of fragment j so far / 500)
        m_j <- (1 - 1 / w) * m_j + a * delta / w         # w = max(5, 1.5 / o, 5 g), at most 20
        r = |m_j| / the root mean square of the last |a * delta| of fragment j, at most 1
        theta_j <- theta_j + 0.28 * sqrt(min(1, server_gain * M / N) * H / (L g)) * r * sqrt(rows / columns) * U V^T
        for each of the L matrices, with U S V^T = (1 - 1 / w) * m_j + a * delta / w     # Nesterov's momentum
    on all other parameters, or on all if H > 7:
        theta_j <- theta_j + a * delta
        on biases of cut layers and on embeddings that all fragments have: a = min(1, server_gain / N) * s(staleness)
    the learning rate of later tasks, at first 0.2, rises if the median c of the last N updates is above -0.05, and
        falls if it is below -0.05 or if the clients' losses have risen
The evaluated model is the Polyak mean of the last models. The overlap o of the clients' labels is 1 if all clients have
the same label frequencies, and about 0.2 if each client has two of ten labels.

Read next: server/muon.py (U V^T), client/halfway_cosine.py and server/local_rates.py (the learning rate),
client/embedding_steps.py (Adam for embeddings).
"""

from dataclasses import dataclass, replace
from itertools import chain
from math import sqrt
from typing import Any, ClassVar, Self

import numpy as np

from fedraa.client.local_training import LocalTraining
from fedraa.composition.method import Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.messages import Index, Mask, Vector
from fedraa.numbers import Count, NotNegative, Positive, UpToOne
from fedraa.server.async_rule import (
    ASYNC_RULE,
    ApplyResult,
    AsyncModel,
    AsyncRule,
    ClientUpdate,
    MixingFormula,
    factor_at,
)
from fedraa.server.mixing import add_delta, blend_weights
from fedraa.server.muon import MatrixBlock, find_blocks, is_added, is_matrix
from fedraa.server.participation_correction import balanced_weight
from fedraa.server.schedule import AsyncSchedule
from fedraa.server.staleness import STALENESS, weight_for_clients
from fedraa.submodels.policies.slices import BY_MODEL, Fragments
from fedraa.vectors.chunked import (
    add_scaled,
    copy_coordinates,
    map_chunks,
    ordered_sum,
    scalar_product,
    subtract_chunk,
    sum_squares,
)
from fedraa.vectors.index_ranges import global_slices

# The momentum of Muon steps covers SHORTEST tasks until a fragment had EARLY short tasks, and later up to LONGEST. A
# short memory is faster at first, when the deltas change quickly. A long memory has less noise at the end of long runs.
# The steps also become shorter after the first EARLY tasks.
EARLY, SHORTEST, LONGEST = 500, 5, 20
# If clients have few labels, the momentum covers more tasks: each label then occurs in about TASKS_PER_LABEL of them. A
# shorter momentum forgets the labels of other clients.
TASKS_PER_LABEL = 1.5
# The running mean of squared deltas covers about this number of updates of a fragment.
SQUARES_WINDOW = 100
# Lower limit of the running mean of squared deltas. Deltas are divided by a power of this mean.
MIN_SQUARE = np.float32(1e-30)


@ASYNC_RULE.register("delta")
@dataclass
class DeltaMix(AsyncRule):
    """theta <- theta + a * (theta_new - theta_sent) with a = min(1, c_n * min(1, server_gain * M / N)) * s(staleness).

    M is the number of fragments, and N the number of clients that train at the same time. About N / M clients train the
    same fragment, all from nearly the same weights, so their deltas with the weight M / N add up to one mean step. The
    rule needs a scheduler that spreads clients evenly over the fragments, such as least-sent. Otherwise the steps of
    some fragments are too long.

    Attributes:
        server_gain: Factor of the weight. A larger factor makes longer steps.
        participation_correction: Power p of c_n = (the client's share of the data / its share of the updates) ** p; 0
            turns c_n off.
        staleness: The factor s, by which the weight decreases with staleness.
        spread: True to give coordinates that are in all fragments the weight server_gain / N, because all N clients
            train them. With `local.full_rate` this holds only for biases of cut layers and for embeddings. Other layers
            that no fragment cuts have the full weight, because their learning rate is already about M times smaller.
    """

    server_gain: Positive = 1.2
    participation_correction: NotNegative = 0.0
    staleness: Any = "constant"
    spread: bool = True

    mixing_formula: ClassVar[MixingFormula | None] = "add-delta"
    state_fields: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        self._factor = STALENESS.resolve(self.staleness)
        self._share = 1.0

    def start(self, model: AsyncModel) -> None:
        self._factor = weight_for_clients(self._factor, model.at_work)
        self._share = min(1.0, self.server_gain * (model.fragments / model.at_work))
        self.shared_weight = 1.0
        if self.spread:
            self.shared_weight = min(1.0, self.server_gain / model.at_work) / self._share

    def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
        weight = self.weight(update.staleness, update.balance)
        common = model.common[update.fragment] if model.common else None
        add_delta(model.params, update.coordinates, weight, update.new, update.sent, common, self.shared_weight)
        return ApplyResult(weight)

    def weight(self, staleness: int, balance: float = 1.0) -> float:
        return balanced_weight(self._share, balance) * factor_at(staleness, self._factor)


@ASYNC_RULE.register("muon-delta")
@dataclass
class MuonDelta(DeltaMix):
    """Muon steps on weight matrices for the deltas of short tasks. All other deltas are added, as in DeltaMix.

    The delta of a task of few local steps has much noise. So it only enters the momentum m, and its length does not
    matter. A task of H local steps leads to the step

        theta <- theta + server_lr * sqrt(min(1, server_gain * M / N) * H / (L * g)) * r * sqrt(rows / columns) * U V^T
        m <- m + (d - m) / w,  v_j <- v_j + (|d|^2 - v_j) / w,  r = min(1, |m| / sqrt(v_j)),  d = a * delta

    on the L matrices of its fragment j, with a as in DeltaMix. U S V^T is a matrix of Nesterov's momentum. The
    fragment's age g = max(1, t / 500) grows after its short task t = 500. The momentum covers w = max(w_1, 5 g) tasks,
    at most 20, with w_1 = max(5, 1.5 / o). The overlap o is described in `measure_label_overlap`.
    In r, the means m and v_j are divided by 1 - (1 - 1 / w_1)^t. r is near 1 if the deltas of the last w tasks agree,
    and about 1 / sqrt(2 w - 1) if they are independent noise: .33 with w = 5, and .16 from t = 2000 on. r depends
    mostly on the directions with the largest deltas, while U V^T has all directions and so all their noise. Therefore
    the steps also become shorter with 1 / sqrt(g). With N clients, m has deltas of about N / M tasks that started from
    nearly the same weights, so the step is shorter for large N.

    The factor sqrt(rows / columns) lets the outputs of all layers change about equally (Yang, Simon and Bernstein,
    "A spectral condition for feature learning", 2023). In deep models, the changes of all L layers add up, with
    independent noise, so the step is divided by sqrt(L). Vectors, such as biases and the weights of norms, move by
    a * delta. For tensors that are added to activations, the factor of rows and columns is 1 (see `is_added`).

    Attributes:
        server_lr: Length of the first step of a square matrix, in units of the weights, for a model with one matrix, a
            task of one local step, and N <= M.
        short_steps: Largest number of local steps of a short task. The deltas of longer tasks are added.
    """

    server_lr: Positive = 0.28
    short_steps: Count = 7

    mixing_formula: ClassVar[MixingFormula | None] = None
    keeps: ClassVar[str] = "momentum m [d]"
    uses_label_overlap: ClassVar[bool] = True
    state_fields: ClassVar[tuple[str, ...]] = ("_momentum", "_squares", "_arrivals")

    def start(self, model: AsyncModel) -> None:
        super().start(model)
        self._momentum = np.zeros(len(model.params), np.float32)
        self._squares = [0.0] * model.fragments
        self._arrivals = [0] * model.fragments
        self._first_memory = max(SHORTEST, TASKS_PER_LABEL / max(model.label_overlap, TASKS_PER_LABEL / LONGEST))
        self._matrices: dict[int, FragmentMatrices] = {}
        self._layers = max(1, sum(is_matrix(shape) and not is_added(shape) for shape in model.tensors))

    def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
        if update.steps > self.short_steps:
            return super().apply_update(update, model)
        matrices = self._find_matrices(update, model)
        delta = np.where(matrices.mask, update.new - update.sent, np.float32(0))
        delta *= np.float32(self.weight(update.staleness, update.balance))
        self._arrivals[update.fragment] += 1
        age = max(1.0, self._arrivals[update.fragment] / EARLY)
        share = 1 / min(LONGEST, max(self._first_memory, SHORTEST * age))
        blend_weights(self._momentum, update.coordinates, delta, share)
        direction = copy_coordinates(self._momentum, update.coordinates)
        length = self.server_lr * sqrt(self._share * update.steps / (self._layers * age))
        length *= self._measure_agreement(update.fragment, share, delta, direction)
        # Nesterov's momentum
        direction *= np.float32(1 - share)
        direction += np.float32(share) * delta
        del delta
        for block in matrices.blocks:
            block.orthogonalize(direction)
        add_scaled(model.params, update.coordinates, length, direction)
        others = np.where(matrices.mask, update.sent, update.new)
        return super().apply_update(replace(update, new=others), model)

    def _find_matrices(self, update: ClientUpdate, model: AsyncModel) -> "FragmentMatrices":
        known = self._matrices.get(update.fragment)
        if known is None or known.where is not update.where:
            known = FragmentMatrices.of(update.where, model)
            self._matrices[update.fragment] = known
        return known

    def _measure_agreement(self, fragment: int, share: float, delta: Vector, momentum: Vector) -> float:
        """Return r after a delta [k] of a fragment, with the momentum [k] after it and share 1 / w, and update v_j."""
        self._squares[fragment] += share * (scalar_product(delta, delta) - self._squares[fragment])
        if not self._squares[fragment]:
            return 0.0
        # This is 1 before w becomes longer than at first.
        correction = 1 - (1 - 1 / self._first_memory) ** self._arrivals[fragment]
        return min(1.0, sqrt(scalar_product(momentum, momentum) / (correction * self._squares[fragment])))

    def memory(self, size: int, clients: int) -> int:
        return 18 * size


@dataclass(frozen=True, eq=False)
class FragmentMatrices:
    """The weight matrices of a fragment.

    Attributes:
        where: The coordinates [k] of the fragment, as indices or as a slice.
        blocks: The blocks of the weight matrices.
        mask: A mask [k] of the entries of all blocks.
    """

    where: Index | slice
    blocks: list[MatrixBlock]
    mask: Mask

    @classmethod
    def of(cls, where: Index | slice, model: AsyncModel) -> Self:
        index = np.arange(len(model.params))[where]
        blocks = find_blocks(model.tensors, index)
        mask = np.zeros(len(index), bool)
        for block in blocks:
            mask[block.part] = True
        return cls(where, blocks, mask)


@ASYNC_RULE.register("rms-normalized-delta")
@dataclass
class RMSNormalizedDelta(DeltaMix):
    """theta <- theta + a * c * delta / v^(power / 2), with a as in DeltaMix.

    v [d] is a running mean of the squared deltas of each coordinate. The factor c restores the norm of delta. With
    `power` 1 all coordinates move about equally far, as with Adam. With `power` 0 the step is the plain delta. The rule
    helps embeddings of rare words, and allows a much larger `server_gain`.
    """

    power: UpToOne = 0.5

    mixing_formula: ClassVar[MixingFormula | None] = None
    keeps: ClassVar[str] = "squares of deltas [d]"
    state_fields: ClassVar[tuple[str, ...]] = ("_squares", "_arrivals")

    def start(self, model: AsyncModel) -> None:
        super().start(model)
        self._squares = np.zeros(len(model.params), np.float32)
        self._arrivals = [0] * model.fragments

    def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
        self._arrivals[update.fragment] += 1
        share = np.float32(1 / min(SQUARES_WINDOW, self._arrivals[update.fragment]))
        normalized, stretch = self._normalize_delta(update, share)
        weight = self.weight(update.staleness, update.balance)
        common = model.common[update.fragment] if model.common else None
        add_delta(model.params, update.coordinates, weight * stretch, normalized, None, common, self.shared_weight)
        return ApplyResult(weight)

    def _normalize_delta(self, update: ClientUpdate, share: np.float32) -> tuple[Vector, float]:
        """Update v with the squared delta: v <- v + share * (delta^2 - v). Return delta / v^(power / 2) [k] and c.

        The factor c is the norm of delta divided by the norm of delta / v^(power / 2).
        """
        normalized = np.empty_like(update.new)
        exponent = np.float32(-self.power / 2)

        def normalize_chunk(piece: slice) -> tuple[list[float], list[float]]:
            delta = subtract_chunk(update.new[piece], update.sent[piece])
            for place, part in global_slices(update.coordinates, piece):
                mean = self._squares[place]
                mean += share * (np.square(delta[part]) - mean)
                self._squares[place] = mean
                np.multiply(delta[part], np.maximum(mean, MIN_SQUARE) ** exponent, out=normalized[piece][part])
            return sum_squares(delta), sum_squares(normalized[piece])

        sums = map_chunks(len(normalized), normalize_chunk)
        before, after = (ordered_sum(list(chain.from_iterable(piece[at] for piece in sums))) for at in (0, 1))
        if not after:
            return normalized, 1.0
        return normalized, (before / after) ** 0.5

    def memory(self, size: int, clients: int) -> int:
        return 4 * size


register(
    Method(
        name="fed-quilt",
        paper="fedraa",
        note="our own method",
        formula=(
            "Short tasks, matrices: `m ← m + (a · delta − m) / w; theta_j ← theta_j + length · U V^T`, m = U S V^T, "
            "w = 5 to 20; after 500 tasks of a fragment the length falls. "
            "Other parameters, long tasks: `theta_j ← theta_j + a · delta`, a = min(1, gain · M / N). The result is "
            "the mean of the last models."
        ),
        when="Little time, and many devices that train at once: tasks are as short as sending allows.",
        submodel=Fragments(BY_MODEL, min_units=2, min_embedding_units=8),
        local=LocalTraining(
            steps="auto:1", lr=0.2, lr_schedule="adaptive", full_rate=True, clip=2.0, logit_calibration=0.8
        ),
        update=MuonDelta(),
        schedule=AsyncSchedule(scheduler="least-sent", polyak_fraction=0.1),
        paper_settings=PaperSettings(source="our own method: no paper"),
    )
)
