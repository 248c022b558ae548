"""The values in config.json that a replay needs, such as the speeds of the devices, the fragments and the limits."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator

from fedraa.callbacks.events import Limits
from fedraa.client.split import SplitCosts
from fedraa.devices.costs import Widths
from fedraa.devices.fleet import Power
from fedraa.devices.link_traces import DescribedRow
from fedraa.numbers import Count
from fedraa.objectives import MetricSpec
from fedraa.rundir.packed_columns import unpack_column

# An entry per client. None stands for infinity.
Column = Annotated[list[float | None], BeforeValidator(unpack_column)]


class _Shape(BaseModel):
    widths: Widths
    params: int
    bytes: int
    flops: float
    memory: int
    personal: int = 0


class FrozenBase(BaseModel):
    """The parameters that no task trains.

    Attributes:
        parameters: The number of parameters.
        sha256: The digest of `fedraa.rundir.frozen_base.base_sha256`.
        changed: The buffers that training changes. They are not part of the digest.
    """

    parameters: int
    sha256: str
    changed: list[str] = []


class Resolved(BaseModel):
    """The section `resolved` of config.json: values of the data set and the model, and defaults."""

    samples: Annotated[list[int], BeforeValidator(unpack_column)]
    compute: Column
    downlink: Column
    uplink: Column
    latency: Column
    memory: Column
    watts: dict[Power, Column] = {}
    links: list[DescribedRow] = []
    tensors: list[str]
    parameters: int
    base: FrozenBase | None = None
    shared: int
    groups: dict[str, int]
    fragments: list[Widths]
    shapes: list[_Shape]
    label_overlap: float
    stem: SplitCosts | None
    eval_every: Count
    limits: Limits
    metrics: list[str] = []
    metric_spec: MetricSpec = MetricSpec()
    max_pending_evals: int
    availability: dict[str, Any] | None


class Described(BaseModel):
    """The sections of config.json that a replay of the run reads."""

    experiment: dict[str, Any]
    method: dict[str, dict[str, Any]]
    resolved: Resolved
