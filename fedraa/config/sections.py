"""The fields of an experiment, in sections. A section's docstring is its heading in `--help`.

Fields that default to None take the method's own value, or none.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, field_validator, model_validator

from fedraa.config.overrides import read_overrides
from fedraa.config.section import Component, Override, Section
from fedraa.errors import InputError
from fedraa.numbers import Count, Decay, NotNegative, Positive, Share, UpToOne

TARGET = r"^[A-Za-z_]\w*:[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$"
ADDRESS = re.compile(r"auto|(ray://)?([\w.-]+|\[[\w.:]+\]):\d{1,5}")


class ProblemOptions(Section):
    """Dataset, model and objective."""

    MAY_CHANGE = frozenset(["data_dir"])

    dataset: str = "digits"
    """digits, mnist, fashion-mnist, emnist, cifar10, cifar100, agnews, a .npz or .csv file, folder:PATH of images,
    npy:PATH, hf:PATH of Hugging Face, csv('FILE', target='COLUMN', client='COLUMN'), or package.module:callable."""
    data_dir: Path | None = None
    """Directory of the datasets."""
    transforms: tuple[Component, ...] = ()
    """Transforms of samples before training: crop, flip, normalize, v2.NAME of torchvision, or a custom Transform."""
    standardise: bool = True
    """Scale floats and bytes per channel to mean 0 and variance 1 over the training samples."""
    allow_nan: bool = False
    """Accept training samples that are not finite, to study their effect."""
    model: Component = "mlp"
    """A model's name or package.module:callable."""
    hidden: tuple[Count, ...] = (200,)
    """Hidden widths of the mlp."""
    dropout: Decay = 0.0
    """Dropout of the models that have one."""
    objective: Component = "classification"
    """The learning task: classification, multilabel, regression, next-token, segmentation, or a custom Objective."""

    @field_validator("dataset", mode="before")
    @classmethod
    def _dataset_name(cls, value: object) -> object:
        """Return a name or a path as text. Objects are not part of an experiment."""
        if not isinstance(value, str | Path):
            hint = "give an object or a function to run(experiment, dataset=...)"
            raise InputError("dataset", got=value, expected="a name or a path", hint=hint)
        return str(value)


class ClientOptions(Section):
    """Clients and their data."""

    clients: Count = 10
    """Number of clients. If it is not set and the data already have clients, all of them."""
    partition: Component | None = None
    """Partition of the training data over the clients: iid, dirichlet, labels, shards, powerlaw, lognormal, noise,
    rotation, natural, with a number if it takes one (dirichlet:0.1), or a custom Partitioner (default: natural if the
    data already have clients, else iid)."""
    dirichlet: Positive | None = None
    """Concentration of the Dirichlet partition (default 0.5); with no --partition it implies that one."""
    validation: Decay = 0.0
    """Evaluate on this share of each client's training samples, which is held back, instead of the test data."""


class DeviceOptions(Section):
    """Devices."""

    compute: Component = "1:0.5,3:0.5"
    """Speeds of the devices: tiers (speed:share,...), lognormal:S, uniform:LOW:HIGH, zipf:A, a .csv file, or the path
    of a custom function."""
    units: Literal["relative", "physical"] = "relative"
    """Units of the devices: relative to the full model, or FLOP/s, bytes/s, seconds and bytes."""
    availability: Path | None = None
    """When the devices are available: a .csv file with a row of client, start and end for each span, or daily:SHARE for
    that share of every period, from a different time of day for each client."""
    availability_period: Positive | None = None
    """Period with which the spans repeat, on the run's clock."""
    duration_jitter: Decay = 0.1
    """A task's duration varies uniformly by this share of its cost."""


class MethodOptions(Section):
    """Method: submodels, update rule and schedule."""

    method: Component = "fed-raa"
    """A named method, see `fedraa methods`, a crossing a+b, or a custom Method as package.module:NAME."""
    submodel: Component | None = None
    """Part of the model that a client trains in a round: full, prefix, rolling, ..., or a custom SubmodelPolicy."""
    fragments: Count | None = None
    """Number of fragments (default: the number of ratios, or 4)."""
    ratios: tuple[Positive, ...] | None = None
    """Share of every width group in each fragment (default: Table 4 of the Fed-RAA paper)."""
    scheduler: Component | None = None
    """Choice of the fragment for each task: gre-raa, least-sent, random, minimum-priority, offline, or a custom
    Scheduler."""
    delay_bound: Positive | None = None
    """Duration of the longest task that Gre-RAA assigns, in time units (default: K* from the costs)."""
    mixing: Share | None = None
    """Weight of an update in the asynchronous mix."""
    staleness: Component | None = None
    """Decrease of that weight with staleness: constant, polynomial, hinge, delay-adaptive, or a custom
    StalenessWeight."""
    server_lr: Positive | None = None
    """Learning rate of the server along the mean delta of a round, or along the delta of a buffer or of one update."""
    participation: Component | None = None
    """Clients of a round: all, sample:K, bernoulli:P, or a custom Participation."""
    concurrency: Count | None = None
    """Clients of an asynchronous method that train at a time. The next is drawn when one finishes (default: all)."""
    buffer_size: Count | None = None
    """Client updates per server update of a buffered method."""
    async_rule: Component | None = None
    """Update rule of an asynchronous method: convex-mix, delta, rms-normalized-delta, buffer, ..., or an AsyncRule."""
    aggregator: Component | None = None
    """Aggregation of the deltas of a round: covered, filled, memorised, hetlora, flora, or a custom Aggregator."""
    server_optimizer: Component | None = None
    """Optimizer of the server: sgd, momentum, adam, yogi, adagrad, amsgrad, or a custom ServerOptimizer."""
    weights: Literal["uniform", "samples"] | None = None
    """Weights of the clients in the mean of a round: equal, or by their number of training samples."""
    capacities: tuple[Share, ...] | Literal["auto"] | None = None
    """Shares of the model that clients can train, assigned in turn. auto: by the speed of each device."""
    polyak_fraction: UpToOne | None = None
    """Evaluate and return the mean model of about this share of the last server updates or rounds. 0 is off."""
    compress: Component | None = None
    """Compression of the delta that a client sends: none, topk:SHARE, 8bit, or a custom Compressor."""
    gradient_transforms: tuple[Component, ...] | None = None
    """Custom GradientTransforms that change the gradient of every local step."""
    override: Override = {}  # noqa: RUF012  # pydantic copies the default
    """Any other value of the method, PATH=VALUE, such as local.sam_rho=0.05. `fedraa methods NAME` lists the paths."""

    @field_validator("override", mode="before")
    @classmethod
    def _read_override(cls, value: object) -> object:
        return read_overrides(value, cls.model_fields)

    @model_validator(mode="after")
    def _check_ratios(self) -> Self:
        if self.ratios is None:
            return self
        total = sum(self.ratios)
        if abs(total - 1) > 1e-6:
            raise InputError("ratios", got=self.ratios, expected=f"shares that sum to 1, not {total:g}")
        if self.fragments is not None and self.fragments != len(self.ratios):
            problem = f"it does not match the {len(self.ratios)} ratios"
            raise InputError("fragments", problem, got=self.fragments, hint="give one of the two")
        return self


class LocalOptions(Section):
    """Local training."""

    lr: Positive = 0.05
    """Local learning rate."""
    momentum: Decay | None = None
    """Local momentum of sgd."""
    local_optimizer: Component | None = None
    """The step of a client along its gradient: sgd, adam, adamw, with the parameters of torch.optim, such as
    adam(betas=(0.9, 0.99), amsgrad=True), or a custom LocalOptimizer (default: sgd). lr, momentum and weight_decay are
    fields of their own; adamw has a weight_decay of 0.01 unless it is given."""
    local_optimizer_state: Literal["reset", "keep"] | None = None
    """State of the local optimizer: reset to zero for each task (default), or keep for each client between tasks."""
    lr_schedule: str = "constant"
    """constant, exponential:0.998, steps:150,250:0.1 or cosine:100, by server updates or rounds; cosine:8@time by the
    run's clock, cosine:40@passes by passes over the training data, cosine:20@local or cosine:auto@local by the local
    steps of each task."""
    batch_size: Count = 32
    """Local minibatch size."""
    local_epochs: Count | None = None
    """Passes over the client's data per task (default 5)."""
    local_steps: int | str | None = None
    """Minibatches per task, instead of epochs; auto: 20, or more, so that sending takes no more than half of a task."""
    weight_decay: NotNegative | None = None
    """Local weight decay."""
    clip: NotNegative | None = None
    """Bound on the norm of a local gradient; 0 is off."""
    prox_mu: NotNegative | None = None
    """Weight of the proximal term."""

    @field_validator("local_steps")
    @classmethod
    def _check_local_steps(cls, value: int | str | None) -> int | str | None:
        """Check a number, or the text for AutoSteps, which is imported only here because that takes seconds."""
        if isinstance(value, str):
            from fedraa.client.auto_steps import AutoSteps

            AutoSteps.of(value)
        elif value is not None and value < 1:
            raise InputError("local_steps", got=value, expected="a number from 1, or auto")
        return value


class StopOptions(Section):
    """End of the run."""

    # The resolved limit that each field sets. A larger limit extends a run.
    LIMITS: ClassVar[Mapping[str, str]] = {
        "updates": "steps",
        "rounds": "steps",
        "time": "time",
        "target_accuracy": "accuracy",
        "target": "target",
    }
    MAY_CHANGE = frozenset(LIMITS)

    updates: Count | None = None
    """End after this number of server updates (asynchronous methods)."""
    rounds: Count | None = None
    """End after this number of rounds (synchronous methods)."""
    time: Positive | None = None
    """End at this time on the run's clock."""
    target_accuracy: Share | None = None
    """End when the test accuracy reaches this, or after 1000 rounds, unless updates, rounds or time set a limit."""
    target: Annotated[str, Field(pattern=TARGET)] | None = None
    """End when a metric reaches a value: METRIC:VALUE, such as perplexity:8 or r2:0.5."""

    @model_validator(mode="after")
    def _check_target(self) -> Self:
        if self.target is not None and self.target_accuracy is not None:
            problem = f"target_accuracy {self.target_accuracy:g} is given as well"
            raise InputError("target", problem, got=self.target, hint="give one of the two")
        return self


class EvaluationOptions(Section):
    """Evaluation."""

    eval_every: Count | None = None
    """Updates (default: one per client) or rounds (default: 1) between two evaluations."""
    metrics: tuple[Component, ...] = ()
    """Further metrics of every evaluation, each a custom Metric as package.module:Name."""
    personalised: Count | None = None
    """Number of clients, drawn evenly, that are also evaluated on their own test samples after local training."""
    client_evals: Count | Literal["final", "all"] | None = None
    """Write the results of each client on its own test samples to clients.csv: at the final evaluation, at all
    evaluations, or at every Nth one and the final one."""
    client_evals_of: Count | None = None
    """Number of clients, drawn evenly from those with test samples, in client_evals (default: all)."""
    statistics: Literal["sample", "all"] = "sample"
    """Training samples that batch norm's statistics are estimated on: 10,000 drawn evenly, or all."""


class FaultOptions(Section):
    """Checkpoints and failing clients."""

    checkpoint_every: Count | None = None
    """Updates or rounds between two checkpoints (default: about every 10 seconds)."""
    max_update_norm: Positive | Literal["auto"] | None = None
    """Drop updates whose Euclidean norm is larger. auto: 20 times the median of the last 50 of the fragment."""
    client_retries: NonNegativeInt = 1
    """Number of further tasks for a client after a task of it failed. If they fail as well, it is quarantined."""
    on_bad_client: Literal["skip", "stop"] = "skip"
    """What happens when a client is quarantined: the run continues without it, or stops."""


class ExecutionOptions(Section):
    """Seed, clock and device."""

    MAY_CHANGE = frozenset(["device"])

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of everything random."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device on which the workers train."""
    bf16: bool = False
    """Forward passes of training in bfloat16."""
    vmap_batch: Annotated[int, Field(ge=1, le=1024)] = 1
    """Tasks of the same shape that a worker trains as one batched computation: for small models on a GPU."""
    clock: Literal["virtual", "wall"] = "virtual"
    """Modelled durations, or real ones."""
    time_scale: Positive = 1.0
    """Real seconds per time unit of the cost model, on the wall clock."""


class ClusterOptions(Section):
    """Engine, workers and Ray cluster."""

    MAY_CHANGE = frozenset(["engine", "workers", "address", "placement", "resources", "server_node"])

    engine: Literal["ray", "local"] = "ray"
    """Worker processes on Ray, or only this process."""
    workers: Count | None = None
    """Worker actors (default: one per core, at most one per client)."""
    threads_per_worker: Count = 1
    """Threads of each worker."""
    address: str | None = None
    """A running Ray cluster to connect to: auto, HOST:PORT, or ray://HOST:PORT for a remote one."""
    placement: Literal["pack", "spread"] = "pack"
    """Workers fill the nodes of the cluster one after another, or are spread over all nodes."""
    resources: tuple[str, ...] | None = None
    """Workers and Ray resources for each tier of compute: COUNT:NAME=AMOUNT,... once per tier."""
    server_node: str | None = None
    """Node of the server: its id, address or name, or a resource that it has (default: the driver's node)."""
    server_shards: Count = 1
    """Actors over which the fragments of an asynchronous method are spread. One is the server itself."""
    data_on_nodes: bool = False
    """Every node reads the dataset from its own data_dir. Otherwise the driver sends it to them."""

    @field_validator("address")
    @classmethod
    def _check_address(cls, value: str | None) -> str | None:
        if value is not None and not ADDRESS.fullmatch(value):
            raise InputError("address", got=value, expected="auto, HOST:PORT or ray://HOST:PORT")
        return value


class OutputOptions(Section):
    """Output."""

    MAY_CHANGE = frozenset(["out", "quiet"])

    out: Path | None = None
    """The run directory to write (default: a new one under runs/)."""
    quiet: bool = False
    """No progress, no table."""
