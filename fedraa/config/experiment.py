"""What one run is: typed, validated on construction, saved with its results."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PlainSerializer,
    SkipValidation,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core.core_schema import ValidationInfo

from fedraa.components.component_errors import unknown_component
from fedraa.components.imports import is_path
from fedraa.components.text import KIND, text_of
from fedraa.config.field_docs import document
from fedraa.config.file import read_values
from fedraa.config.no_effect import refuse_without_effect
from fedraa.config.usual_names import value_hint
from fedraa.config.validation_errors import input_error
from fedraa.errors import InputError
from fedraa.numbers import Count, Decay, NotNegative, Positive, Share, UpToOne

TARGET = r"^[A-Za-z_]\w*:[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$"
ADDRESS = re.compile(r"auto|(ray://)?([\w.-]+|\[[\w.:]+\]):\d{1,5}")

# Names of built-in components by field, so that a wrong name is refused before anything slow is imported. Rules and
# aggregators are missing here: they register in the file of their method, and are checked when a run is built.
NAMES: dict[str, tuple[str, ...]] = {
    "scheduler": ("gre-raa", "least-sent", "random", "minimum-priority", "offline"),
    "staleness": ("constant", "polynomial", "hinge", "delay-adaptive"),
    "partition": ("iid", "dirichlet", "labels", "shards", "powerlaw", "lognormal", "noise", "rotation", "natural"),
    "objective": ("classification", "multilabel", "regression", "next-token", "segmentation"),
    "local_optimizer": ("sgd", "adam", "adamw"),
    "server_optimizer": ("sgd", "momentum", "adam", "yogi", "adagrad", "amsgrad"),
}
# Fields that take several values, and one value as well.
SEVERAL = ("hidden", "transforms", "ratios", "capacities", "local_terms", "metrics", "resources")
AUTO_CAPACITIES = "auto"
if TYPE_CHECKING:
    Component = Any
else:  # the command line reads text; objects come from Python, and are written down as that text
    Component = Annotated[str, SkipValidation, PlainSerializer(text_of, when_used="json")]


class Experiment(BaseModel):
    """One run of one method; every field is a command-line flag of the same name.

    Fields that default to None take the method's own value, or none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=True)

    method: Component = "fed-raa"
    """A named method, see `fedraa methods`, a crossing a+b, or an own Method as package.module:NAME."""
    dataset: str = "digits"
    """digits, mnist, fashion-mnist, emnist, cifar10, cifar100, agnews, a .npz or .csv file, folder:PATH of images,
    npy:PATH, hf:PATH of Hugging Face, csv('FILE', target='COLUMN', client='COLUMN'), or package.module:callable."""
    data_dir: Path | None = None
    """Where the datasets lie."""
    model: Component = "mlp"
    """A model's name or package.module:callable."""
    hidden: tuple[Count, ...] = (200,)
    """Hidden widths of the mlp."""
    dropout: Decay = 0.0
    """Dropout of the models that have one."""
    objective: Component = "classification"
    """What is learnt: classification, multilabel, regression, next-token, segmentation, or an own Objective."""

    clients: Count = 10
    """Number of clients; where the data have some of their own, as many as these unless it is given."""
    partition: Component | None = None
    """How training data is dealt: iid, dirichlet, labels, shards, powerlaw, lognormal, noise, rotation, natural, with a
    number if it takes one (dirichlet:0.1), or an own Partitioner (default: natural where data have clients of their
    own, else iid)."""
    dirichlet: Positive | None = None
    """Concentration of the Dirichlet partition (default 0.5); with no --partition it implies that one."""
    labels_per_client: Count | None = None
    """Labels per client of the labels partition (default 2); with no --partition it implies that one."""
    transforms: tuple[Component, ...] = ()
    """What becomes of samples before training: crop, flip, normalize, v2.NAME of torchvision, or an own Transform."""
    standardise: bool = True
    """Scale floats and bytes per channel to mean 0 and variance 1 over the training samples, whatever the way in."""
    allow_nan: bool = False
    """Let training samples that are not finite through, to see what becomes of them."""

    capabilities: Component = "1:0.5,3:0.5"
    """Tiers (capability:share,...), lognormal:S, uniform:LOW:HIGH, zipf:A, a .csv file, or an own function's path."""
    units: Literal["relative", "physical"] = "relative"
    """Units of the devices: relative to the full model, or FLOP/s, bytes/s, seconds and bytes."""
    availability: Path | None = None
    """A .csv file of when devices are there, a row with client, start and end for every span; or daily:SHARE, that
    share of every period, from a time of day of its own."""
    availability_period: Positive | None = None
    """The spans repeat with this period, on the run's clock."""
    jitter: Decay = 0.1
    """A task's duration varies uniformly by this share of its cost."""

    fragments: Count | None = None
    """Number of fragments (default 4, or as many as there are ratios)."""
    ratios: tuple[Positive, ...] | None = None
    """Share of every width group in each fragment (default: Table 4 of the Fed-RAA paper)."""
    fragment_scale: bool = False
    """Scale a fragment's activations by the inverse of its share while it trains."""
    scheduler: Component | None = None
    """Who trains which fragment: gre-raa, least-sent, random, minimum-priority, offline, or an own Scheduler."""
    delay_bound: Positive | None = None
    """The longest task that Gre-RAA gives out, in time units (default: K* from the costs)."""
    mixing: Share | None = None
    """Weight of an update in the asynchronous mix."""
    staleness: Component | None = None
    """How that weight falls with staleness: constant, polynomial, hinge, delay-adaptive, or an own StalenessWeight."""
    gain: Positive | None = None
    """Length of the mean step of the clients on a fragment, where deltas are added."""
    balance: NotNegative | None = None
    """Power of data against speed in the weight of an arrival; 1: all samples count alike in the long run; 0 is off."""
    server_lr: Positive | None = None
    """Step length of the server along the mean delta of a round, or along what a buffer or an arrival comes to."""

    concurrency: Count | None = None
    """Clients of an asynchronous method that train at a time, drawn anew as each is done (default: all)."""
    buffer_size: Count | None = None
    """Arrivals per server update of a buffered method."""
    async_rule: Component | None = None
    """Update rule of an asynchronous server: convex-mix, delta, rms-normalized-delta, buffer, ..., or a custom one."""
    delay_limit: Count | None = None
    """Staleness at which a rule ignores an update or shortens its step, for rules that have such a limit."""
    aggregator: Component | None = None
    """How a round's deltas become one: covered, filled, memorised, hetlora, flora, or an own Aggregator."""
    server_optimizer: Component | None = None
    """The step along them: sgd, momentum, adam, yogi, adagrad, amsgrad, or an own ServerOptimizer."""
    participation: Component | None = None
    """Who takes part in a round: all, sample:K, bernoulli:P, or an own Participation."""
    weights: Literal["uniform", "samples"] | None = None
    """How the clients of a round count in its mean: all alike, or as their training samples."""
    submodel: Component | None = None
    """Which part of the model a client trains in a round: full, prefix, rolling, ..., or an own SubmodelPolicy."""
    capacities: tuple[Share, ...] | Literal["auto"] | None = None
    """Shares of the model that clients can train, dealt out in turn; auto: by the speed of each one's device."""
    redraw: bool | None = None
    """Draw every client's capacity anew each round."""
    mask_level: Literal["L", "S", "MIX"] | None = None
    """Regions that a client trains: 2 of 4, 1 of 4, or half the clients each."""
    uncovered_every: NonNegativeInt | None = None
    """Every so many rounds all clients train the same regions; 0 is never."""
    stride: NonNegativeInt | None = None
    """Units that a rolling window moves on per round."""
    shuffled: bool | None = None
    """Permute the blocks of every cycle, or keep their order."""
    density: Share | None = None
    """Share of the weights that pruning keeps."""
    reprune_every: Count | None = None
    """Choose the pruned weights anew every so many rounds."""
    split: Count | None = None
    """Layers on the client in split learning."""
    server_compute: Positive = 10.0
    """In split learning, speed of the server that trains the rest: so many times the fastest device's."""

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
    batch_size: Count = 32
    """Local minibatch size."""
    local_epochs: Count | None = None
    """Passes over the client's data per task (default 5)."""
    local_steps: int | str | None = None
    """Minibatches per task, instead of epochs; auto: 20, or more, so that sending takes no more than half of a task."""
    lr_schedule: str = "constant"
    """constant, exponential:0.998, steps:150,250:0.1 or cosine:100, by server updates or rounds; cosine:8@time by the
    run's clock, cosine:40@passes by passes over the training data, cosine:20@local or cosine:auto@local by the local
    steps of each task."""
    full_rate: bool | None = None
    """Scale a submodel's activations by the inverse of its share, and its learning rate by the share."""
    calibrate: UpToOne | None = None
    """Move logits by the log of how frequent labels are at the client, so much of it, the rest uniform; 0 is off."""
    weight_decay: NotNegative | None = None
    """Local weight decay."""
    clip: NotNegative | None = None
    """Bound on the norm of a local gradient; 0 is off."""
    compress: Component = "none"
    """How a client sends its delta back: none, topk:SHARE, 8bit, or an own Compressor."""
    compress_down: Component | None = None
    """How the server sends the model to the clients of a round: none, 8bit, topk:SHARE, or an own Compressor."""
    local_terms: tuple[Component, ...] | None = None
    """Own GradientTransforms that bend the gradient of every local step."""
    proximal: NotNegative | None = None
    """Weight of the proximal term."""
    sam: NotNegative | None = None
    """Radius of sharpness-aware minimisation; 0 is off."""

    average: UpToOne | None = None
    """Evaluate and deliver a mean over about this share of the last server updates or rounds; 0 is off."""

    fresh: Share | None = None
    """Weight of the fresh gradient beside the server's momentum (alpha of FedCM, beta of MoFedSAM)."""

    updates: Count | None = None
    """End after so many server updates (asynchronous methods)."""
    rounds: Count | None = None
    """End after so many rounds (synchronous methods)."""
    time: Positive | None = None
    """End at this time on the run's clock."""
    target_accuracy: Share | None = None
    """End when the test accuracy reaches this, or after 1000 rounds, unless updates, rounds or time set a limit."""
    target: Annotated[str, Field(pattern=TARGET)] | None = None
    """End when this figure is as good, METRIC:VALUE, such as perplexity:8 or r2:0.5."""
    eval_every: Count | None = None
    """Evaluate every so many updates (default: one per client) or rounds (default 1)."""
    metrics: tuple[Component, ...] = ()
    """Further figures of every evaluation, each an own Metric as package.module:Name."""
    personalised: Count | None = None
    """Clients, drawn evenly, that are evaluated on their own test samples after training on their own data, too."""
    client_evals: Count | Literal["final", "all"] | None = None
    """Write the results of each client on its own test samples to clients.csv: at the final evaluation, at all of
    them, or at every so many and the final one."""
    client_evals_of: Count | None = None
    """Clients, drawn evenly from those with test samples, whose results client_evals writes (default: all)."""
    validation: Decay = 0.0
    """Evaluate on this share of each client's training samples, which is held back, and not on the test data."""
    statistics: Literal["sample", "all"] = "sample"
    """Training samples that batch norm's statistics are estimated on: 10,000 drawn evenly, or all."""
    checkpoint_every: Count | None = None
    """Checkpoint every so many updates or rounds (default: about every 10 seconds)."""
    max_update_norm: Positive | Literal["auto"] | None = None
    """Refuse updates whose Euclidean norm is over this; auto: 20 times the median of their fragment's last 50."""
    client_retries: NonNegativeInt = 1
    """Further tasks that a client is given whose last one came to nothing; after them it is left out."""
    on_bad_client: Literal["skip", "stop"] = "skip"
    """What then: the others go on without it, or the run stops."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of everything random."""

    engine: Literal["ray", "local"] = "ray"
    """Worker processes on Ray, or this process alone."""
    workers: Count | None = None
    """Worker actors (default: one per core, at most one per client)."""
    threads_per_worker: Count = 1
    """Threads of each worker."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where workers train."""
    bf16: bool = False
    """Forward passes of training in bfloat16."""
    stack: Annotated[int, Field(ge=1, le=1024)] = 1
    """Tasks of the same shape that a worker trains as one batched computation: for small models on a GPU."""
    clock: Literal["virtual", "wall"] = "virtual"
    """Modelled durations, or real ones."""
    time_scale: Positive = 1.0
    """Real seconds per time unit of the cost model, on the wall clock."""
    address: str | None = None
    """A running Ray cluster to attach to: auto, HOST:PORT, or ray://HOST:PORT for one that is elsewhere."""
    placement: Literal["pack", "spread"] = "pack"
    """Workers fill the nodes of the cluster one after another, or are dealt out to all."""
    resources: tuple[str, ...] | None = None
    """Workers and Ray resources for each tier of capabilities: COUNT:NAME=AMOUNT,... once per tier."""
    server_node: str | None = None
    """Where the server lives: a node's id, address or name, or a resource that it has (default: the driver's node)."""
    server_shards: Count = 1
    """Actors over which the fragments of an asynchronous method are spread; one is the server itself."""
    data_on_nodes: bool = False
    """Every node reads the dataset by itself, from its own data_dir, instead of being sent it."""
    out: Path | None = None
    """The run directory to write (default: a new one under runs/)."""
    quiet: bool = False
    """No progress, no table."""

    def __init__(self, **values: object) -> None:
        """Raise InputError for the first field that cannot be used."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            given = {name: value for name, value in values.items() if name not in SEVERAL}
            raise input_error(error, given, type(self).model_fields) from None

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Return the experiment of a TOML file, whose keys are the fields. A component is text or a table with `kind`.

        Raises InputError, with the file before the field: `my.toml: lr`.
        """
        values = read_values(path, cls.model_fields)
        try:
            return cls(**values)
        except InputError as error:
            raise error.with_field(f"{path}: {error.field}") from None

    @field_validator("*", mode="before")
    @classmethod
    def _one_or_several(cls, value: object, info: ValidationInfo) -> object:
        """Accept one value for a field that takes several, and components as mappings."""
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if str(info.field_name) in SEVERAL and not isinstance(value, list | tuple | range | set | type(None)):
            value = value if isinstance(value, str) and value == AUTO_CAPACITIES else (value,)
        return cls._written(value)

    @field_validator("dataset", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        """Return a name or a path as text. Objects are not part of an experiment."""
        if not isinstance(value, str | Path):
            hint = "give an object or a function to run(experiment, dataset=...)"
            raise InputError("dataset", got=value, expected="a name or a path", hint=hint)
        return str(value)

    @classmethod
    def _written(cls, value: object) -> object:
        """Return components that are given as mappings as they will be written: a resumed run has the same."""
        if isinstance(value, list | tuple):
            return tuple(cls._written(item) for item in value)
        return text_of(value) if isinstance(value, Mapping) and isinstance(value.get(KIND), str) else value

    @field_validator(*NAMES)
    @classmethod
    def _known(cls, value: object, info: ValidationInfo) -> object:
        """Check the name of a component. Import paths and names of classes are resolved when the run is built."""
        if isinstance(value, str) and not is_path(value.partition("(")[0].strip()):
            name, names = value.partition("(")[0].strip(), NAMES[str(info.field_name)]
            if info.field_name == "partition":
                name = name.partition(":")[0]
            if name not in names and not name[:1].isupper():
                field = str(info.field_name)
                raise unknown_component(field, name, names, hint=value_hint(field, name))
        return value

    @field_validator("local_steps")
    @classmethod
    def _counted(cls, value: int | str | None) -> int | str | None:
        """Check a number, or the text for AutoSteps, which is imported only here because that takes seconds."""
        if isinstance(value, str):
            from fedraa.client.auto_steps import AutoSteps

            AutoSteps.of(value)
        elif value is not None and value < 1:
            raise InputError("local_steps", got=value, expected="a number from 1, or auto")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.ratios is not None:
            if abs(sum(self.ratios) - 1) > 1e-6:
                expected = f"shares that sum to 1, not {sum(self.ratios):g}"
                raise InputError("ratios", got=self.ratios, expected=expected)
            if self.fragments is not None and self.fragments != len(self.ratios):
                raise InputError(
                    "fragments",
                    f"it does not match the {len(self.ratios)} ratios",
                    got=self.fragments,
                    hint="give one of the two",
                )
        if self.target is not None and self.target_accuracy is not None:
            problem = f"target_accuracy {self.target_accuracy:g} is given as well"
            raise InputError("target", problem, got=self.target, hint="give one of the two")
        refuse_without_effect(self)
        if self.address is not None and not ADDRESS.fullmatch(self.address):
            raise InputError("address", got=self.address, expected="auto, HOST:PORT or ray://HOST:PORT")
        if self.resources is not None:
            self._check_resources(self.resources)
        return self

    def _check_resources(self, resources: tuple[str, ...]) -> None:
        # They take seconds to import.
        from fedraa.devices.worker_groups import group_of_clients, parse_group

        groups = [parse_group(text) for text in resources]
        group_of_clients(groups, self.capabilities, self.clients)
        total = sum(group.workers for group in groups)
        if self.workers not in (None, total):
            problem = f"it does not match the {total} workers of resources"
            raise InputError("workers", problem, got=self.workers, hint="give one of the two")


document(Experiment)
