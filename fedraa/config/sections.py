"""The fields of an experiment, in sections.

The docstring of a section is its heading in `--help-all`, and the text below a field is its help text.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, field_validator, model_validator

from fedraa.config.overrides import read_overrides
from fedraa.config.section import Component, Override, PathText, Section
from fedraa.errors import InputError
from fedraa.numbers import AtLeastOne, Count, Decay, NotNegative, Positive, Share, UpToOne, format_count

DEFAULT_CLIENTS = 10
DEFAULT_ATTACKERS = 0.2
ADDRESS = re.compile(r"auto|(ray://)?([\w.-]+|\[[\w.:]+\]):\d{1,5}")


class ProblemOptions(Section):
    """Dataset, model and objective."""

    MAY_CHANGE = frozenset(["data_dir"])

    dataset: str = "digits"
    """Data set: digits, mnist, fashion-mnist, emnist, cifar10, cifar100, agnews, femnist, shakespeare, celeba, sent140,
    reddit, stackoverflow, a .npz or .csv file, csv('FILE', target='COLUMN'), folder:PATH of images, npy:PATH, hf:PATH,
    or package.module:callable."""
    data_dir: PathText | None = None
    """Folder of the data set's files; missing image data sets are downloaded to it (default: none)."""
    transforms: tuple[Component, ...] = ()
    """Transforms of the training samples: crop, flip, normalize, v2.NAME of torchvision, or a custom Transform
    (default: none)."""
    standardise: bool = True
    """Scale floats and bytes per channel to mean 0 and variance 1 over the training samples."""
    allow_nan: bool = False
    """Accept training samples with NaN or infinite values."""
    model: Component = "mlp"
    """Model: mlp, cnn, resnet18, ..., or package.module:NAME."""
    hidden: tuple[Count, ...] = (200,)
    """Number of units of each hidden layer of the model mlp."""
    dropout: Decay = 0.0
    """Dropout probability of built-in models with dropout layers."""
    objective: Component = "classification"
    """Learning task: classification, multilabel, regression, next-token, segmentation, or a custom Objective."""

    @field_validator("dataset", mode="before")
    @classmethod
    def _dataset_name(cls, value: object) -> object:
        """Return a name or a path as text. Raise InputError for other objects."""
        if not isinstance(value, str | Path):
            hint = "pass an object or a function by run(experiment, dataset=...)"
            raise InputError("dataset", got=value, expected="a name or a path", hint=hint)
        return str(value)


class ClientOptions(Section):
    """Clients and their data."""

    clients: Count | None = None
    """Number of clients (default: the number that the data define, or 10)."""
    partition: Component | None = None
    """Partition of the samples among the clients: iid, dirichlet:ALPHA, hsu:ALPHA, mixture, labels:K, shards:K,
    quantity:BETA, zipf, powerlaw, lognormal, noise, rotation, colour, natural, or a custom Partitioner (default:
    natural if the data define clients, otherwise iid)."""
    dirichlet: Positive | None = None
    """Concentration of the Dirichlet partition; it selects this partition if --partition is not set (default: 0.5)."""
    validation: Decay = 0.0
    """Share of each client's training samples that evaluations use instead of the test samples."""

    @property
    def client_count(self) -> int:
        """The option `clients`, or `DEFAULT_CLIENTS`. If the data define clients, the option is set later."""
        return self.clients or DEFAULT_CLIENTS


class DeviceOptions(Section):
    """Devices."""

    compute: Component = "1:0.5,3:0.5"
    """Speeds of the devices (in FLOP/s with --units physical): tiers SPEED:SHARE,..., lognormal:SIGMA,
    uniform:LOW:HIGH, zipf:A, a .csv file, profiles('NAME:SHARE,...') of real devices, a trace fedscale('FILE',
    flops=F), or package.module:NAME."""
    units: Literal["relative", "physical"] = "relative"
    """Units of the devices: relative to the full model, or physical (FLOP/s, bytes/s, s and bytes)."""
    availability: PathText | None = None
    """Times at which the devices are available: a .csv file with the columns client, start and end, daily:SHARE for a
    share of every period, or a FedScale trace fedscale:FILE (default: always)."""
    availability_period: Positive | None = None
    """Period of --availability, in time units, or in s with --units physical (default: the times do not repeat)."""
    links: PathText | None = None
    """Bandwidths of the devices over time: a .csv file with the columns client, end, downlink and uplink; the rows of a
    client repeat after its last row (default: constant bandwidths, from --compute)."""
    duration_jitter: Decay = 0.1
    """Largest random deviation of a task's duration from its cost, relative to the cost."""


class MethodOptions(Section):
    """Method: submodels, update rule and schedule."""

    method: Component = "fed-raa"
    """Method: a name from `fedraa methods`, two names a+b, or a custom Method as package.module:NAME."""
    submodel: Component | None = None
    """Choice of the submodel that a client trains in a round: full, prefix, rolling, ..., or a custom SubmodelPolicy
    (default: the method's)."""
    fragments: Count | None = None
    """Number of fragments (default: the number of --ratios, or the method's)."""
    ratios: tuple[Positive, ...] | None = None
    """Share of the units of every layer in each fragment (default: the method's)."""
    cut_layers: Annotated[tuple[str, ...] | None, Field(examples=["fc*"])] = None
    """Layers of which submodels have only some units: names of layers or of modules with layers, or patterns such as
    "fc*"; all other layers stay whole (default: all layers that can be cut)."""
    scheduler: Component | None = None
    """Choice of a client's next fragment: gre-raa, least-sent, random, minimum-priority, offline, or a custom Scheduler
    (default: the method's)."""
    delay_bound: Positive | None = None
    """Largest cost of a task that the scheduler gre-raa or least-sent assigns, in the units of --time (default: K* of
    the Fed-RAA paper, from the costs)."""
    mixing: Share | None = None
    """Weight with which an asynchronous server mixes a client update into the model, before staleness reduces this
    weight (default: the method's)."""
    staleness: Component | None = None
    """Decrease of the weight --mixing with staleness: constant, polynomial, hinge, delay-adaptive, cosine-gate, or a
    custom StalenessWeight (default: the method's)."""
    server_lr: Positive | None = None
    """Learning rate of the server's step along the mean delta of a round or a buffer (default: the method's)."""
    participation: Component | None = None
    """Clients of a round: all, sample:K, bernoulli:P, poisson:P (may be none), uniform:K, weighted:K, round-robin:K,
    available:K, power-of-choice:K, oort:K, routing:K, tifl:K, or a custom Selection (default: the method's)."""
    next_client: Component | None = None
    """Client that an asynchronous server chooses next, with --concurrency: uniform, weighted, round-robin, available,
    power-of-choice, oort, or a custom Selection; routing also works without --concurrency (default: the method's)."""
    over_selection: AtLeastOne | None = None
    """Factor by which a round starts more clients than it needs; the updates of the slowest clients are lost
    (default: 1)."""
    deadline: Positive | None = None
    """Time after which a round ends, in the units of --time (default: none)."""
    late: Literal["drop", "partial"] | None = None
    """Treatment of a client that is not ready at the deadline: drop discards its update, partial keeps the local steps
    that it finished (default: drop)."""
    concurrency: Count | None = None
    """Number of clients that train at the same time, with an asynchronous method (default: all)."""
    buffer_size: Count | None = None
    """Number of client updates that an asynchronous server collects before a step, with a method such as fedbuff
    (default: the method's)."""
    async_rule: Component | None = None
    """Rule by which an asynchronous server applies a client update: convex-mix, delta, rms-normalized-delta, buffer,
    ..., or a custom AsyncRule (default: the method's)."""
    aggregator: Component | None = None
    """Combination of the deltas of a round: covered, filled, memorised, hetlora, flora, majority, fltrust, a custom
    Aggregator, or an aggregator that also works on the buffer of fedbuff: median, trimmed-mean, krum, multi-krum,
    bulyan, geometric-median, centred-clipping, norm-bound (default: the method's)."""
    server_optimizer: Component | None = None
    """Optimizer of the server's step: sgd, momentum, adam, yogi, adagrad, amsgrad, corrected-adam, muon,
    normalized-momentum, or a custom ServerOptimizer (default: the method's)."""
    weights: Literal["uniform", "samples"] | None = None
    """Weights of the clients in the mean of a round: uniform (all equal), or samples (by number of training samples)
    (default: the method's)."""
    capacities: tuple[Share, ...] | Literal["auto"] | None = None
    """Share of the model that each client can train; a shorter list is repeated for the other clients, and auto sets
    the share by the speed of each device (default: the method's)."""
    polyak_fraction: UpToOne | None = None
    """Fraction of all server updates or rounds, of which the latest models are averaged for an evaluation; 0 evaluates
    only the current model (default: the method's)."""
    compress: Component | None = None
    """Compression of the delta that a client sends: none, topk:SHARE, randomk:SHARE, 8bit, qsgd:LEVELS, scaled-sign,
    sign (for signsgd), or a custom Compressor (default: the method's)."""
    error_feedback: Literal["none", "ef", "ef21"] | None = None
    """Correction of the errors of --compress, which each client keeps: ef adds the last error to the next delta, ef21
    compresses the difference from the delta that the server stores (default: the method's)."""
    personal_layers: Annotated[tuple[str, ...] | None, Field(examples=["last-layer"])] = None
    """Layers that stay at each client and are never sent: names of modules or parameters, patterns such as "head.*", or
    last-layer, all-but-last-layer or batch-norm (default: the method's)."""
    gradient_transforms: tuple[Component, ...] | None = None
    """Custom GradientTransforms, which change the gradient of every local step (default: the method's)."""
    # pydantic copies this mutable default.
    override: Override = {}  # noqa: RUF012
    """Other values of the method as PATH=VALUE, such as local.sam_rho=0.05; `fedraa methods NAME` lists the paths
    (default: none)."""

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
            raise InputError("ratios", got=self.ratios, expected=f"fractions that sum to 1, not {total:g}")
        if self.fragments is not None and self.fragments != len(self.ratios):
            problem = f"it does not match the {format_count(len(self.ratios), 'ratio')}"
            raise InputError("fragments", problem, got=self.fragments, hint="give one of the two")
        return self


class LocalOptions(Section):
    """Local training."""

    lr: Positive | None = None
    """Local learning rate (default: 0.05; fed-quilt starts at 0.2)."""
    momentum: Decay | None = None
    """Momentum of the local optimizer sgd (default: the method's)."""
    local_optimizer: Component | None = None
    """Local optimizer: sgd, adam or adamw, with parameters of torch.optim such as adam(betas=(0.9, 0.99)); delta-sgd,
    dog, dowg or ldog, which set the learning rate themselves; or a custom LocalOptimizer (default: sgd)."""
    local_optimizer_state: Literal["reset", "keep"] | None = None
    """State of the local optimizer at the start of a task: reset sets it to zero, keep continues with the state after
    the client's last task (default: reset)."""
    lr_schedule: Annotated[str | None, Field(examples=["cosine:100"])] = None
    """Schedule of the local learning rate: constant, adaptive (the server adapts it during the run), exponential:0.998,
    steps:150,250:0.1 or cosine:100 by server updates or rounds, cosine:8@time by the run's clock, cosine:40@passes by
    passes over the training data, cosine:20@local or cosine:auto@local by the local steps of a task (default: constant,
    or adaptive with fed-quilt if --lr is not set)."""
    batch_size: Count | None = None
    """Local batch size, in samples (default: 32)."""
    local_epochs: Count | None = None
    """Local epochs per task (default: 5, unless --local-steps is set)."""
    local_steps: Annotated[int | str | None, Field(examples=["auto"])] = None
    """Local steps per task, instead of epochs; auto is short (up to 15 steps), but longer if sending takes over half of
    the task's time (default: none)."""
    weight_decay: NotNegative | None = None
    """Local weight decay (default: the method's, or 0.01 for adamw)."""
    clip: NotNegative | None = None
    """Largest norm of a local gradient; longer gradients are scaled down, and 0 means no limit (default: the
    method's)."""
    prox_mu: NotNegative | None = None
    """Coefficient mu of the local proximal term (default: the method's)."""

    @field_validator("local_steps")
    @classmethod
    def _check_local_steps(cls, value: int | str | None) -> int | str | None:
        """Raise InputError for a text that AutoSteps does not accept, or a number below 1."""
        # This import takes seconds.
        if isinstance(value, str):
            from fedraa.client.auto_steps import AutoSteps

            AutoSteps.of(value)
        elif value is not None and value < 1:
            raise InputError("local_steps", got=value, expected="at least 1, or auto")
        return value


class StopOptions(Section):
    """End of the run."""

    # The limit that each field sets. A resumed run may have a larger limit.
    LIMITS: ClassVar[Mapping[str, str]] = {
        "updates": "steps",
        "rounds": "steps",
        "time": "time",
        "target_accuracy": "accuracy",
        "target": "target",
    }
    MAY_CHANGE = frozenset(LIMITS)

    updates: Count | None = None
    """End an asynchronous run after this number of updates (default: about 20 per client, no limit with --time)."""
    rounds: Count | None = None
    """End after this number of rounds (default: 20, no limit with --time)."""
    time: Positive | None = None
    """End at this time on the run's clock, in s with --clock wall or --units physical (default: no limit)."""
    target_accuracy: Share | None = None
    """End when the test accuracy reaches this value, or after 1000 rounds without another limit (default: none)."""
    target: Annotated[str | None, Field(examples=["perplexity:8"])] = None
    """End when a metric reaches a value, as METRIC:VALUE, such as perplexity:8 or r2:0.5 (default: none)."""

    @model_validator(mode="after")
    def _check_target(self) -> Self:
        if self.target is not None and self.target_accuracy is not None:
            problem = f"target_accuracy {self.target_accuracy:g} is set as well"
            raise InputError("target", problem, got=self.target, hint="give one of the two")
        return self


class EvaluationOptions(Section):
    """Evaluation."""

    eval_every: Count | None = None
    """Number of server updates or rounds between two evaluations (default: the number of clients, or 1 round)."""
    metrics: tuple[Component, ...] = ()
    """Additional metrics of every evaluation, each a custom Metric as package.module:Name (default: none)."""
    personalised: Count | None = None
    """Number of random clients for which a personal model is evaluated on the client's test samples: the kept model, or
    else the global model after local training (default: 100 if clients keep models, otherwise none)."""
    client_evals: Count | Literal["final", "all"] | None = None
    """Evaluations that also write the metrics of each client on its test samples to clients.csv: final, all, or N for
    every Nth and the final one (default: none)."""
    client_evals_of: Count | None = None
    """Number of clients in clients.csv, drawn at random among those with test samples (default: all)."""
    statistics: Literal["sample", "all"] = "sample"
    """Training samples from which the statistics of batch norm are computed: sample (10,000 random ones), or all."""


class AttackOptions(Section):
    """Clients that attack, for experiments with robust aggregators."""

    attack: Component | None = None
    """Attack: sign-flip, scaling, gaussian, alie, ipm, label-flip, backdoor, or a custom Attack (default: none)."""
    attackers: Share | None = None
    """Share of the clients that carry out the attack, drawn at random (default: 0.2)."""


class PrivacyOptions(Section):
    """Differential privacy of clients."""

    privacy: Component | None = None
    """Place of clipping and noise: central, central-adaptive or local, such as central(noise=1.0, clip=1.0)
    (default: none)."""
    privacy_delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Delta of (epsilon, delta) differential privacy, for which epsilon is computed (default: N^-1.1 for N clients, at
    most 0.1)."""
    max_participations: Count | None = None
    """Maximum number of tasks of each client; the run ends when all clients have had this number (default: no
    limit)."""


class FaultOptions(Section):
    """Checkpoints and failing clients."""

    checkpoint_every: Count | None = None
    """Number of server updates or rounds between two checkpoints (default: a checkpoint about every 10 s)."""
    max_update_norm: Positive | Literal["auto"] | None = None
    """Largest Euclidean norm of an update, above which it is dropped; auto is 20 times the median norm of the
    last 50 updates of the same fragment, or of sampled submodels of the same size (default: no limit)."""
    client_retries: NonNegativeInt = 1
    """Number of retries after a failed task of a client; if all fail, it is quarantined: it gets no more tasks."""
    on_bad_client: Literal["skip", "stop"] = "skip"
    """Reaction to a quarantined client: skip continues without it, stop ends the run."""


class ExecutionOptions(Section):
    """Seed, clock and device."""

    MAY_CHANGE = frozenset(["device"])

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of all random numbers."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device on which the workers train; auto takes a GPU if there is one, otherwise the CPU."""
    bf16: bool = False
    """Compute the forward passes of training in bfloat16."""
    vmap_batch: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of tasks with submodels of the same shape that a worker trains as one batched computation, which is faster
    for small models on a GPU."""
    clock: Literal["virtual", "wall"] = "virtual"
    """Clock of the run: virtual simulates the durations of tasks, wall measures them."""
    time_scale: Positive = 1.0
    """Duration of one time unit on the wall clock, in s."""


class ClusterOptions(Section):
    """Engine, workers and Ray cluster."""

    MAY_CHANGE = frozenset(["engine", "workers", "address", "placement", "resources", "server_node"])

    engine: Literal["ray", "local"] = "ray"
    """Engine: worker processes on Ray, or on this machine alone."""
    workers: Count | None = None
    """Number of workers (default: on Ray one per core, otherwise one)."""
    threads_per_worker: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of threads of each worker; it changes the rounding, and so the bits of the result."""
    address: Annotated[str | None, Field(examples=["10.0.0.7:6379"])] = None
    """Address of a running Ray cluster: auto, HOST:PORT, or ray://HOST:PORT for a remote one (default: a new local
    cluster)."""
    placement: Literal["pack", "spread"] = "pack"
    """Placement of the workers: pack fills the nodes of the cluster one after another, spread uses all nodes."""
    resources: Annotated[tuple[str, ...] | None, Field(examples=["2:CPU=1"])] = None
    """Number of workers for each tier of --compute and the Ray resources of each worker, as COUNT:NAME=AMOUNT,... once
    per tier (default: none)."""
    server_node: Annotated[str | None, Field(examples=["10.0.0.7"])] = None
    """Node of the Ray cluster that runs the server: the node's id, address or name, or a resource that it has
    (default: the node of this command)."""
    server_shards: Count = 1
    """Number of Ray actors, including the server, among which the fragments of an asynchronous method are divided."""
    data_on_nodes: bool = False
    """Read the data set from --data-dir on every node, instead of sending it from the node of this command."""

    @field_validator("address")
    @classmethod
    def _check_address(cls, value: str | None) -> str | None:
        if value is not None and not ADDRESS.fullmatch(value):
            raise InputError("address", got=value, expected="auto, HOST:PORT or ray://HOST:PORT")
        return value


class OutputOptions(Section):
    """Output."""

    MAY_CHANGE = frozenset(["out", "quiet"])

    out: PathText | None = None
    """Run directory to write (default: a new one under runs/)."""
    quiet: bool = False
    """Print neither progress nor results."""
