"""The rules of a run, such as its scheduler and its costs, created from config.json without data set and model."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from fedraa.aggregation.registry import find_needed_client, may_set_traffic
from fedraa.client import LocalTraining
from fedraa.client.local_algorithm import LocalAlgorithm
from fedraa.components.field_checks import check_component_fields
from fedraa.components.text import is_foreign, rebuild_component
from fedraa.composition.method import AXES
from fedraa.composition.registry import component_classes
from fedraa.config.experiment import Experiment
from fedraa.devices.availability import Timing, availability_from
from fedraa.devices.costs import CostModel, CostSettings, Widths
from fedraa.devices.device_columns import check_values
from fedraa.devices.fleet import COLUMNS, Fleet
from fedraa.devices.link_traces import restore_links
from fedraa.devices.modelled_cost import ModelledCost
from fedraa.errors import InputError, locate_error
from fedraa.ledger.async_ledger import AsyncLedger
from fedraa.ledger.bad_clients import BadClients
from fedraa.ledger.client_selector import ClientSelector
from fedraa.ledger.dispatch import Dispatch
from fedraa.ledger.participation import NEXT_CLIENT, PARTICIPATION, needs_observations
from fedraa.ledger.round_ledger import RoundLedger
from fedraa.ledger.selection_context import ClientFacts
from fedraa.messages import Floats
from fedraa.numbers import expected_text, format_count
from fedraa.replay.logged_selector import LoggedSelector
from fedraa.replay.resolved import Described, Resolved
from fedraa.rundir.config_file import read_config
from fedraa.rundir.file_names import CONFIG
from fedraa.selection.simple import Uniform
from fedraa.server.async_rule import ASYNC_RULE, AsyncRule
from fedraa.server.optimizers import SERVER_OPTIMIZER
from fedraa.server.partial_work import Deadline, RoundEnd, cut_task
from fedraa.server.participation_correction import planned_balances
from fedraa.server.schedule import SCHEDULER
from fedraa.server.selection import (
    make_async_selector,
    make_deadline,
    make_facts,
    make_round_selector,
    make_routing,
)
from fedraa.submodels.cost import Cost
from fedraa.submodels.policies.pruning import AdaptivePruning
from fedraa.submodels.policies.slices import LayerCut
from schedulers import GreRAA, Scheduler, SchedulerRunner


@dataclass(frozen=True)
class TaskCosts:
    """The costs of a task.

    Attributes:
        modelled: The duration, the energy, and the times of the training.
        down: Bytes that the client receives.
        up: Bytes that the client sends.
        flops: Training FLOPs.
        cut_at: The number of local steps, if the task must stop early because of a deadline; otherwise None.
    """

    modelled: ModelledCost
    down: int
    up: int
    flops: float
    cut_at: int | None = None


@dataclass(frozen=True)
class Rules:
    """The rules of a run: its settings, scheduler, costs and so on. A replay checks the log against them."""

    experiment: Experiment
    method: dict[str, dict[str, Any]]
    resolved: Resolved
    directory: Path

    @classmethod
    def read(cls, directory: Path) -> "Rules":
        """Return the rules in a run's configuration. Raise InputError if the configuration is damaged."""
        path = directory / CONFIG
        place = f"run: {path}"
        try:
            described = Described.model_validate(read_config(path))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = ".".join(map(str, first["loc"]))
            raise InputError(f"{place}: {name}", got=first["input"], expected=expected_text(first)) from None
        _check_devices(path, described.resolved)
        for axis in AXES:
            if axis not in described.method:
                raise InputError(f"{place}: method.{axis}", "it is missing")
        try:
            experiment = Experiment(**described.experiment)
        except ValueError as error:
            raise locate_error(error, f"{place}: experiment") from None
        return cls(experiment, described.method, described.resolved, directory)

    @property
    def wall(self) -> bool:
        return self.experiment.clock == "wall"

    @property
    def clients(self) -> int:
        return len(self.resolved.samples)

    @property
    def concurrency(self) -> int | None:
        """In an asynchronous method, the maximum number of clients that train at the same time; None for all."""
        limit: int | None = self.method["schedule"].get("concurrency")
        return limit

    def bad_clients(self) -> BadClients:
        """Return the component that decides about failed clients, in its initial state."""
        return BadClients(
            self.experiment.client_retries,
            stop=self.experiment.on_bad_client == "stop",
            needed=find_needed_client(self.method["update"].get("aggregator")),
            max_tasks=self.experiment.max_participations,
        )

    @property
    def whole(self) -> bool:
        """True if all tasks send the whole model, so that the log names no submodels."""
        return self.method["submodel"]["kind"] in ("Full", "LayerCut")

    @property
    def scheduled(self) -> bool:
        """True if a scheduler chooses fragments."""
        return "scheduler" in self.method["schedule"]

    @property
    def table_known(self) -> bool:
        """True if a replay can compute the expected duration of every client's task on every submodel."""
        local = self.method["local"]
        # A custom RoundState may send any number of buffers with a task.
        parts = (local.get("compressor"), local.get("algorithm"), self.method["update"].get("auxiliary"))
        return not any(map(is_foreign, (*parts, self._download_compressor)))

    @property
    def costs_known(self) -> bool:
        """True if a replay can compute the submodel and the cost of every task."""
        aggregator = self.method["update"].get("aggregator")
        return (self.scheduled or self.whole) and self.table_known and not may_set_traffic(aggregator)

    @property
    def choices_known(self) -> bool:
        """True if a replay can choose the clients: the selection is built-in, and no cost that it uses is unknown."""
        schedule = self.method["schedule"]
        if self.is_custom("schedule", "participation") or self.is_custom("schedule", "next_client"):
            return False
        if "participation" in schedule:
            return self.table_known or not needs_observations(PARTICIPATION.resolve(schedule["participation"]))
        selection = NEXT_CLIENT.resolve(schedule.get("next_client", "uniform"))
        return self.table_known or isinstance(selection, Uniform)

    @property
    def _download_compressor(self) -> Any:
        return self.method["schedule"].get("download_compressor", "none")

    @cached_property
    def timing(self) -> Timing:
        availability = None
        if self.resolved.availability is not None:
            availability = availability_from(self.resolved.availability)
        return Timing(self.experiment.seed, self.experiment.duration_jitter, availability)

    @cached_property
    def shapes(self) -> dict[Widths, Cost]:
        return {shape.widths: Cost(**shape.model_dump(exclude={"widths"})) for shape in self.resolved.shapes}

    @cached_property
    def costs(self) -> CostModel:
        """The costs of tasks. Raises InputError if config.json has values of local training that no run has."""
        columns = _device_columns(self.resolved)
        watts: dict[str, Floats] = {name: columns.pop(name) for name in self.resolved.watts}
        local = {name: value for name, value in self.method["local"].items() if name != "kind"}
        if is_foreign(local["compressor"]):
            local["compressor"] = "none"
        if is_foreign(local["algorithm"]):
            local["algorithm"] = LocalAlgorithm()
        else:
            local["algorithm"] = rebuild_component("local.algorithm", local["algorithm"], component_classes())
        solver = LocalTraining(**local)
        check_component_fields(solver, "local")
        # The property raises InputError if `steps` is malformed.
        _ = solver.auto
        auxiliary = self.method["update"].get("auxiliary", {"kind": "RoundState"})
        if is_foreign(auxiliary):
            auxiliary = {"kind": "RoundState"}
        settings = CostSettings(
            unit=self.experiment.time_scale if self.wall else 1.0,
            stem=self.resolved.stem,
            server=self.method["submodel"].get("server_compute", LayerCut.server_compute),
            download="none" if is_foreign(self._download_compressor) else self._download_compressor,
            frozen=self.resolved.base is not None,
            label_overlap=self.resolved.label_overlap,
            extra_buffers=component_classes()[auxiliary["kind"]].extra_buffers,
        )
        return CostModel(
            Fleet(
                **columns,
                relative=self.experiment.units == "relative",
                watts=watts,
                links=restore_links("links", self.resolved.links, self.clients),
            ),
            np.array(self.resolved.samples, np.int64),
            solver,
            self.shapes.__getitem__,
            tuple(self.resolved.groups.values()),
            settings,
        )

    def task_costs(self, widths: Widths, decision: Dispatch, now: float, end: RoundEnd | None) -> TaskCosts:
        """Return the costs of a task on a dense submodel of these widths, by the current cost estimates.

        Args:
            widths: Number of kept units in each width group.
            decision: The decision to send the task.
            now: Time at which the task is sent.
            end: The end of the round; None without a deadline.
        """
        client = decision.client
        crossing = int(self.costs.activation_bytes(self.costs.sample_passes(widths, client)))
        down, up = self.costs.moved_bytes(widths)
        up += crossing
        down = 0 if decision.resent else down + crossing
        steps = cut_task(end, self.costs, widths, decision, now, (down, up))
        modelled = self.costs.cost(widths, client, down, up, now, steps)
        return TaskCosts(modelled, down, up, self.costs.flops(widths, client, steps), steps)

    def is_custom(self, axis: str, field: str) -> bool:
        """Return True if a field of the method, such as `schedule` and `scheduler`, is a custom component."""
        return is_foreign(self.method[axis].get(field))

    @property
    def custom_components(self) -> list[str]:
        """The names of the method's custom components. A replay does not check their decisions."""
        names = []
        for choice in self.method.values():
            for described in (choice, *choice.values()):
                if is_foreign(described):
                    names.append(described["kind"] if isinstance(described, dict) else described)
        return names

    def planner(self) -> SchedulerRunner:
        """Return the scheduler with the current costs. A custom scheduler is replaced by Gre-RAA.

        Unknown costs are replaced by 0. Then all fragments are feasible.
        """
        schedule = self.method["schedule"]
        scheduler: Scheduler = GreRAA()
        if not self.is_custom("schedule", "scheduler"):
            scheduler = SCHEDULER.copy_for_run(schedule["scheduler"])
        costs = np.zeros((self.clients, len(self.resolved.fragments)))
        if self.table_known:
            costs = self.costs.table(self.resolved.fragments)
        return SchedulerRunner.planned(scheduler, costs, schedule["delay_bound"])

    def async_ledger(self) -> AsyncLedger:
        """Return the initial ledger of an asynchronous server."""
        choice: dict[str, Any] = {
            "clients": self.clients,
            "seed": self.experiment.seed,
            "concurrency": self.concurrency,
        }
        selector: ClientSelector | None
        routing = None
        if self.choices_known:
            next_client = self.method["schedule"].get("next_client", "uniform")
            selector = make_async_selector(next_client, self._client_facts, **choice)
            routing = make_routing(next_client, self._client_facts, **choice)
        else:
            selector = LoggedSelector(self.directory, self.clients)
        return AsyncLedger(
            bad_clients=self.bad_clients(),
            fragments=len(self.resolved.fragments),
            scheduler=self.planner() if self.scheduled else None,
            selector=selector,
            routing=routing,
            # Schedules of sampled submodels do not have this field.
            staleness_clock=self.method["schedule"].get("staleness_clock", "fragment"),
            **choice,
        )

    def async_rule(self) -> AsyncRule | None:
        """Return the rule by which an asynchronous server applies updates; None for a custom rule.

        In a built-in rule, a built-in component replaces a custom staleness weight or a custom optimizer.
        """
        update = dict(self.method["update"])
        if is_foreign(update):
            return None
        for name, built_in in (("staleness", "constant"), ("optimizer", "sgd")):
            if is_foreign(update.get(name)):
                update[name] = built_in
        return ASYNC_RULE.resolve(update)

    def round_ledger(self) -> RoundLedger:
        """Return a ledger in its initial state, for a server that works in rounds."""
        samples = None
        if self.method["update"].get("weights") == "samples":
            samples = self.resolved.samples
        return RoundLedger(
            clients=self.clients,
            seed=self.experiment.seed,
            bad_clients=self.bad_clients(),
            selector=self._round_selector(),
            samples=samples,
            fragments=len(self.resolved.fragments),
            scheduler=self.planner() if self.scheduled else None,
        )

    @property
    def server_lr(self) -> float | None:
        """The learning rate of the server; None if a custom optimizer decides it."""
        optimizer = self.method["update"]["optimizer"]
        if isinstance(optimizer, str) and is_foreign(optimizer):
            return None
        if isinstance(optimizer, str):
            return SERVER_OPTIMIZER.resolve(optimizer).server_lr
        step: float | None = optimizer.get("server_lr")
        return step

    def balances(self) -> list[float]:
        """Return the participation correction of each client, by which the weights of its updates are multiplied.

        Clients that report more often have smaller corrections. They depend on the samples and the current costs.
        """
        samples = np.array(self.resolved.samples, np.int64)
        power = self.method["update"].get("participation_correction", 0.0)
        balances = planned_balances(self.costs, self.resolved.fragments, samples, power, self.concurrency)
        factors: list[float] = balances.tolist()
        return factors

    def _round_selector(self) -> ClientSelector:
        """Return the selector of clients for rounds. Choices that a replay cannot compute are read from the log."""
        policy = self.method["submodel"]
        single_client_rounds = 0
        if policy["kind"] == AdaptivePruning.__name__ and policy["density"] < 1:
            single_client_rounds = policy["initial"]
        if self.is_custom("schedule", "participation"):
            return LoggedSelector(self.directory, self.clients)
        selector = make_round_selector(
            self.method["schedule"].get("participation", "all"),
            self._client_facts,
            clients=self.clients,
            seed=self.experiment.seed,
            over_selection=self.method["schedule"].get("over_selection", 1.0),
            single_client_rounds=single_client_rounds,
        )
        if self.choices_known:
            return selector
        return LoggedSelector(self.directory, self.clients, selector.needed)

    @cached_property
    def deadline(self) -> Deadline | None:
        """The deadline of the rounds, if they have one."""
        schedule = self.method["schedule"]
        return make_deadline(schedule.get("deadline"), schedule.get("late", "drop"), self.timing, wall=self.wall)

    def _client_facts(self) -> ClientFacts:
        return make_facts(self.costs, self.resolved.fragments, self.resolved.samples, self.timing)


def _check_devices(path: Path, resolved: Resolved) -> None:
    """Raise InputError if the configuration has values of devices or samples that no run can have."""
    if min(resolved.samples, default=0) < 1:
        raise InputError(f"run: {path}: samples", got=resolved.samples, expected="at least one sample for each client")
    for name, values in _device_columns(resolved).items():
        if len(values) != len(resolved.samples):
            problem = f"it has {format_count(len(values), 'client')}"
            raise InputError(f"run: {path}: {name}", problem, expected=f"{len(resolved.samples)}, as in samples")
        check_values(str(path), name, values, lambda n: f"client {n}", values.tolist())
    restore_links(f"run: {path}: links", resolved.links, len(resolved.samples))


def _device_columns(resolved: Resolved) -> dict[str, Floats]:
    written = {name: getattr(resolved, name) for name in COLUMNS} | resolved.watts
    # In config.json, None stands for infinity. NumPy converts None to NaN.
    columns = {name: np.array(values, np.float64) for name, values in written.items()}
    for column in columns.values():
        column[np.isnan(column)] = np.inf
    return columns
