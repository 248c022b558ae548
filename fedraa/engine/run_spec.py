"""The specification of a run that is ready to start. The user's process builds it, and the server runs it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedraa.aggregation.registry import AGGREGATOR
from fedraa.aggregation.robust.rows import RobustAggregator
from fedraa.attacks.attack import AttackPlan
from fedraa.attacks.backdoor import Backdoor
from fedraa.callbacks.events import Limits, RunStart
from fedraa.client.error_feedback import FEEDBACK
from fedraa.client.input_adversary import declare_adversary
from fedraa.client.kept_buffer import PERSONAL_LAYERS, KeptBuffer
from fedraa.client.local_optimizer import LOCAL_OPTIMIZER
from fedraa.client.split import SplitCosts, measure_split
from fedraa.client.training_state import TrainingState
from fedraa.components.calls import memory_of
from fedraa.composition.method import Method
from fedraa.config.experiment import Experiment
from fedraa.data import Federated, Transforms
from fedraa.data.division import FEW
from fedraa.data.tree import Tree, count_bytes, list_leaves, take_rows
from fedraa.devices.availability import Timing
from fedraa.devices.costs import FLOAT32_BYTES
from fedraa.devices.fleet import Fleet
from fedraa.evaluation.evaluator import ATTACK_SUCCESS
from fedraa.evaluation.metrics import NamedMetric
from fedraa.evaluation.personal import EvaluationData, KeptModels, choose_clients
from fedraa.ledger.participation import PARTICIPATION, Poisson, Selection
from fedraa.messages import Mask, Vector
from fedraa.models.statistics import has_statistics
from fedraa.objectives import Classification, MetricSpec, Objective, make_target, refuse_no_accuracy
from fedraa.privacy.accountant import PrivacyTerms
from fedraa.privacy.noisy_sum import NOISE_BYTES
from fedraa.privacy.privacy import Privacy, default_delta
from fedraa.rng import generator
from fedraa.server.schedule import Barrier, Schedule
from fedraa.submodels import IndexSet, Traced
from fedraa.submodels.assignment import Submodel
from fedraa.submodels.cost import Cost
from fedraa.submodels.meter import measure_cost
from fedraa.submodels.personal_layers import find_personal, personal_mask

DEFAULT_ROUNDS = 20
# Maximum number of rounds of a run with a target and no other limit.
DEFAULT_ROUNDS_TO_TARGET = 1000
# An evaluation tests the personal models of this number of clients by default.
PERSONAL_EVALS = 100
# Number of samples from which an evaluation estimates the statistics of normalisation layers.
STATISTICS_SAMPLES = 10_000
# If the samples come from a data source, an evaluation reads at most this number of bytes for the statistics, but at
# least `FEW` samples.
STATISTICS_BYTES = 256 * 2**20


@dataclass(frozen=True, eq=False)
class RunSpec:
    """All inputs of a run. The object can be pickled."""

    experiment: Experiment
    method: Method
    data: Federated
    traced: Traced
    fleet: Fleet
    params: Vector
    index_sets: tuple[IndexSet, ...]
    example: Tree
    """A batch of inputs, tensors [b, ...], after the scaling that clients apply."""
    labels_held: npt.NDArray[np.bool_]
    timing: Timing
    metrics: tuple[NamedMetric, ...] = ()
    objective: Objective = field(default_factory=Classification)
    object_fields: tuple[str, ...] = ()
    """The fields that hold objects which the configuration cannot recreate, such as the model."""
    transforms: Transforms = field(default_factory=Transforms)
    """The random transforms of training."""
    state: TrainingState = field(default_factory=TrainingState)
    """The buffers that the model changes in training, such as batch statistics, and how they are handled."""
    label_shares: tuple[float, ...] | None = None
    """The share of each label in the data of all clients, if the method calibrates logits."""
    label_overlap: float = 1.0
    """How much the label shares of a client overlap with those of all clients, on average (`measure_label_overlap`).

    A run needs this number if its number of local steps is auto, or if its AsyncRule has `uses_label_overlap`.
    """
    attack: AttackPlan | None = None
    """The attack of some clients."""
    privacy: Privacy | None = None
    """The privacy mechanism."""
    _personal_counts: dict[tuple[int, ...], int] = field(default_factory=dict, init=False, repr=False)
    """The number of parameters in personal layers, for each submodel shape."""

    @cached_property
    def submodels(self) -> list[Submodel]:
        """The fragments that a scheduler assigns. A model that is not cut is a single fragment."""
        return [Submodel.of(self.traced, kept) for kept in self.index_sets]

    @property
    def wall(self) -> bool:
        return self.experiment.clock == "wall"

    @property
    def limits(self) -> Limits:
        experiment = self.experiment
        steps = experiment.updates or experiment.rounds
        if steps is None and experiment.time is None:
            rounds = DEFAULT_ROUNDS
            if experiment.target is not None or experiment.target_accuracy is not None:
                rounds = DEFAULT_ROUNDS_TO_TARGET
            steps = rounds * self._steps_per_round
        target = None
        if experiment.target is not None:
            target = make_target(experiment.target, self.metric_spec)
        if experiment.target_accuracy is not None:
            refuse_no_accuracy(experiment.target_accuracy, self.metric_spec)
        return Limits(steps, experiment.time, experiment.target_accuracy, target)

    @property
    def metric_spec(self) -> MetricSpec:
        """The metrics of every evaluation."""
        spec = replace(make_metric_spec(self.objective, self.metrics), personal=bool(self.personal_clients))
        if self.attack is None or not isinstance(self.attack.attack, Backdoor):
            return spec
        return replace(spec, less=(*spec.less, ATTACK_SUCCESS), own=(*spec.own, ATTACK_SUCCESS))

    @property
    def eval_every(self) -> int:
        return self.experiment.eval_every or self._steps_per_round

    @property
    def max_participants(self) -> int:
        """The largest number of clients that can take part before the run reaches its limits."""
        schedule = self.method.schedule
        clients = self.experiment.client_count
        steps = self.limits.steps
        first: int | None
        per_step: int | None
        if schedule.asynchronous:
            first = getattr(schedule, "concurrency", None)
            per_step = self.method.update.per_step
        else:
            first = 0
            per_step = getattr(participation_of(schedule), "count", None)
        if first is None or per_step is None or steps is None:
            return clients
        return min(clients, first + steps * per_step)

    @property
    def at_a_time(self) -> int:
        """The number of clients that train at the same time, if the method is asynchronous."""
        clients = self.experiment.client_count
        return min(clients, getattr(self.method.schedule, "concurrency", None) or clients)

    @property
    def _steps_per_round(self) -> int:
        """The number of server steps in which each client sends about one update."""
        if not self.method.asynchronous:
            return 1
        return max(1, self.experiment.client_count // self.method.update.per_step)

    @cached_property
    def stem(self) -> SplitCosts | None:
        """The costs of the client's half of the model in split learning; None without split learning."""
        split = self.method.local.split
        if not split:
            return None
        return measure_split(self.traced.module, split, self.example)

    def measure(self, widths: tuple[int, ...]) -> Cost:
        """Return the cost of a submodel shape. Each shape is measured only once."""
        cost = measure_cost(self.traced, widths, self.example)
        if not self.personal_names:
            return cost
        if widths not in self._personal_counts:
            skeleton = self.traced.make_skeleton(widths)
            self._personal_counts[widths] = int(personal_mask(self.traced, self.personal_names, skeleton).sum())
        return replace(cost, personal=self._personal_counts[widths])

    @property
    def shapes(self) -> dict[tuple[int, ...], Cost]:
        """The costs, by widths, of the whole model and of each submodel that the method fixes before the start."""
        widths = {part.widths for part in self.submodels} | {self.traced.widths(self.traced.full())}
        return {shape: self.measure(shape) for shape in sorted(widths)}

    @cached_property
    def personal_names(self) -> frozenset[str]:
        """The names of the parameters that stay at each client."""
        return find_personal(self.traced, self.method.local.personal_layers)

    @cached_property
    def shared(self) -> Mask | None:
        """Mask [d] of the coordinates that clients send; None for all."""
        if not self.personal_names:
            return None
        return ~personal_mask(self.traced, self.personal_names, self.traced.module)

    @property
    def scales_rate(self) -> bool:
        """True if the learning rate of a submodel is multiplied by its share of the units."""
        return self.method.local.full_rate or self.method.submodel.scales

    @property
    def full_weight(self) -> Mask | None:
        """Mask [d] of coordinates to which the `shared_weight` of an AsyncRule does not apply; None for none.

        If the rate of a fragment is multiplied by its share, these are layers that no fragment cuts. All clients train
        them, but at a smaller rate, so that the sum of their deltas is as large as that of any other layer. It does not
        apply to embeddings, whose rate may not depend on the share.
        """
        return self.traced.uncut_layers() if self.scales_rate and self.method.asynchronous else None

    @property
    def kept_models(self) -> KeptModels | None:
        """The personal models that clients keep; None if the method has none or evaluations do not use them."""
        algorithm = self.method.local.algorithm
        if not self.personal_clients or not (algorithm.has_personal_model or self.personal_names):
            return None
        layers = None if self.shared is None else ~self.shared
        return KeptModels(algorithm, layers, self.state.min_batch)

    @cached_property
    def personal_clients(self) -> list[int]:
        """The clients whose personal models are evaluated, drawn from the honest clients with test samples.

        `personalised` sets the number of clients. By default it is `PERSONAL_EVALS` for a method that keeps personal
        models, otherwise 0.
        """
        count = self.experiment.personalised
        if count is None and (self.method.local.algorithm.has_personal_model or self.personal_names):
            count = PERSONAL_EVALS
        if count is None:
            return []
        attackers = frozenset() if self.attack is None else self.attack.attackers
        return choose_clients(self.data, count, generator(self.experiment.seed, "personalised"), attackers)

    @property
    def kept_buffers(self) -> tuple[KeptBuffer, ...]:
        """The buffers that each client keeps between its tasks."""
        local = self.method.local
        buffers: list[KeptBuffer] = []
        if local.optimizer_state == "keep":
            optimizer = LOCAL_OPTIMIZER.resolve(local.local_optimizer)
            buffers += optimizer.kept(local.momentum, len(self.traced.names))
        buffers += local.algorithm.kept
        if local.error_feedback != "none":
            buffers.append(FEEDBACK)
        if local.adversary:
            buffers.append(declare_adversary(sum(leaf[0].numel() for leaf in list_leaves(self.example))))
        if self.shared is not None:
            buffers.append(replace(PERSONAL_LAYERS, coordinates=np.flatnonzero(~self.shared)))
        return tuple(buffers)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the values that one client keeps between its tasks."""
        return FLOAT32_BYTES * sum(buffer.count(self.params.size) for buffer in self.kept_buffers)

    def update_bytes(self, clients: int) -> int:
        """Return the bytes of the state of the method's server update for this number of clients."""
        field = "async_rule" if self.method.asynchronous else "method.update"
        return memory_of(field, self.method.update, self.params.size, self._count_rows(clients))

    def _count_rows(self, clients: int) -> int:
        """Return the number of clients, or the largest number of rows in a buffer if this is larger.

        Krum, Multi-Krum and Bulyan have a row for each fragment of each client in the buffer.
        """
        if not self.method.asynchronous or self.method.aggregator is None:
            return clients
        aggregator = AGGREGATOR.resolve(self.method.aggregator)
        if not isinstance(aggregator, RobustAggregator) or not aggregator.row_per_fragment:
            return clients
        return max(clients, min(clients, self.method.update.per_step) * len(self.submodels))

    @property
    def noise_bytes(self) -> int:
        """Bytes that the server needs for clipped deltas and noise with central privacy; 0 without central privacy."""
        if self.privacy is None or self.privacy.local:
            return 0
        return NOISE_BYTES * self.params.size

    @property
    def privacy_terms(self) -> PrivacyTerms | None:
        """The values that determine the privacy loss; None without privacy.

        Sampling of clients reduces the privacy loss only under three conditions: each round draws a Poisson sample of
        the clients, every client trains and sends the whole model, and the server adds the noise (central privacy).
        """
        if self.privacy is None:
            return None
        participation = participation_of(self.method.schedule)
        sampling = None
        is_secret = not self.privacy.local and self.method.submodel.whole and self.shared is None
        if isinstance(participation, Poisson) and is_secret:
            sampling = participation.share
        per_release = None
        if self.method.asynchronous:
            per_release = self.method.update.per_step
        delta = self.experiment.privacy_delta or default_delta(self.experiment.client_count)
        return PrivacyTerms(self.privacy.noise, delta, per_release, sampling, self.privacy.local)

    def make_start(self, directory: Path, *, resumed: bool) -> RunStart:
        """Return the facts about the run that callbacks receive when it starts or resumes in this directory."""
        return RunStart(self.experiment, directory, self.limits, resumed, self.metric_spec, self.method.asynchronous)

    def without_training_rows(self) -> "RunSpec":
        """Return a copy of the run that has fewer training samples: only those that evaluations need.

        The copy still contains the number of samples of each client.
        """
        return replace(self, data=self.evaluation_data)

    @property
    def evaluation_data(self) -> EvaluationData:
        """The test data, and the training data that evaluations need.

        If training changes buffers of the model, evaluations estimate them on a uniform subset of the training samples:
        at most `STATISTICS_SAMPLES` samples and, from a data source, at most `STATISTICS_BYTES` bytes. With
        `statistics="all"`, every evaluation reads all samples.
        """
        if isinstance(self.data, EvaluationData):
            return self.data
        shards = {client: self.data.client(client) for client in self.personal_clients}
        estimates = has_statistics(self.traced.module) or bool(self.state.estimated)
        streamed = estimates and self.data.source is not None and self.experiment.statistics == "all"
        data = self._without_samples()
        if estimates and not streamed:
            data = self._statistics_data()
        return EvaluationData.of(data, shards, streamed=streamed, reported=self._reported_clients())

    def _reported_clients(self) -> npt.NDArray[np.int64] | None:
        """Return the clients in clients.csv, or None if the run writes no clients.csv."""
        experiment = self.experiment
        if experiment.client_evals is None:
            return None
        if experiment.client_evals_of is None:
            return np.arange(experiment.client_count)
        drawn = choose_clients(self.data, experiment.client_evals_of, generator(experiment.seed, "client_evals"))
        return np.array(drawn, np.int64)

    def _statistics_data(self) -> Federated:
        """Return the data with fewer training samples. Evaluations estimate the statistics of batch norm on them."""
        dataset = self.data.dataset
        source = self.data.source
        count = int(self.data.sizes.sum())
        limit = STATISTICS_SAMPLES
        if source is not None:
            sample_bytes = count_bytes(dataset.x_train) // len(dataset.y_train)
            limit = min(limit, max(FEW, STATISTICS_BYTES // max(1, sample_bytes)))
        rows = np.arange(count)
        if count > limit and self.experiment.statistics == "sample":
            rows = np.sort(generator(self.experiment.seed, "statistics").choice(count, limit, replace=False))
        elif source is None:
            return self.data
        x = take_rows(dataset.x_train, rows) if source is None else source.inputs(rows)
        empty = self._without_samples()
        return replace(empty, dataset=replace(empty.dataset, x_train=x))

    def _without_samples(self) -> Federated:
        dataset = self.data.dataset
        no_rows = {name: take_rows(getattr(dataset, name), slice(0)) for name in ("x_train", "y_train")}
        return replace(self.data, dataset=replace(dataset, **no_rows))


def participation_of(schedule: Schedule) -> Selection | None:
    """Return the component that chooses the clients of each round; None if the schedule has no rounds."""
    if not isinstance(schedule, Barrier):
        return None
    return PARTICIPATION.resolve(schedule.participation)


def make_metric_spec(objective: Objective, metrics: Sequence[NamedMetric]) -> MetricSpec:
    """Return the metrics of every evaluation: the objective's and the user's."""
    built_in = objective.summary()
    less = (*built_in.less, *(metric.name for metric in metrics if metric.better == "min"))
    return replace(built_in, less=less, own=tuple(metric.name for metric in metrics))
