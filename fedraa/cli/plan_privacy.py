"""The lines of `fedraa plan` about a run's differential privacy: its epsilon, and the noise for a wanted epsilon."""

from math import inf
from typing import Any

import numpy as np

from fedraa.cli.plan_outlook import first_ledger, make_task_cost
from fedraa.cli.plan_tasks import MAX_SIMULATED
from fedraa.engine.factories import make_planner
from fedraa.engine.forecast import dry_run
from fedraa.engine.run_spec import RunSpec, participation_of
from fedraa.errors import InputError, no_effect_error
from fedraa.ledger.participation import NEXT_CLIENT, draw_cohort, needs_observations
from fedraa.numbers import format_count
from fedraa.privacy.accountant import (
    find_gaussian_noise,
    find_poisson_noise,
    gaussian_epsilon,
    group_updates,
    largest_squared,
    poisson_epsilon,
)
from fedraa.selection.simple import Uniform
from fedraa.server.async_rule import AsyncRule


def privacy_lines(spec: RunSpec, epsilon: float | None) -> list[str]:
    """Return lines about the differential privacy of a run in which no task fails.

    If the budget `epsilon` is given, the lines also state the noise that it needs.
    """
    terms = spec.privacy_terms
    if epsilon is not None and not 0 < epsilon < inf:
        raise InputError("epsilon", got=epsilon, expected="a finite number above 0")
    if terms is None:
        if epsilon is not None:
            raise no_effect_error("epsilon", epsilon, "no privacy", "give --privacy, such as central")
        return []
    steps = spec.limits.steps
    squared = None
    if spec.experiment.max_participations is not None or (steps is not None and spec.limits.time is None):
        squared = count_participation(spec, steps or 0)
    if squared is None:
        if epsilon is not None:
            problem = "the participation of the clients is not known before the run"
            raise InputError("epsilon", problem, got=epsilon, hint="run it: the summary has epsilon")
        return ["privacy        epsilon depends on the participation of the clients; the summary of the run has it"]
    wanted = 0.0
    if terms.sampling is not None:
        assert steps is not None, "the number of participations is bounded only without sampling"
        expected = poisson_epsilon(terms.noise, terms.sampling, steps, terms.delta)
        source = format_count(steps, "Poisson round")
        if epsilon is not None:
            wanted = find_poisson_noise(epsilon, terms.sampling, steps, terms.delta)
    else:
        expected = gaussian_epsilon(terms.noise, squared, terms.delta)
        source = f"for the client that trains most often, which counts as {format_count(squared, 'update')}"
        if spec.experiment.max_participations is not None:
            source = f"for a client that counts as {format_count(squared, 'update')}, the maximum"
        if epsilon is not None:
            wanted = find_gaussian_noise(epsilon, squared, terms.delta)
    lines = [f"privacy        noise {terms.noise:g} gives epsilon {expected:.4g} at delta {terms.delta:.3g} ({source})"]
    if epsilon is not None:
        lines.append(f"for epsilon    {epsilon:g}: noise {wanted:.4g}")
    return lines


def count_participation(spec: RunSpec, steps: int) -> int | None:
    """Return the largest participation of a client in a run of `steps` steps without failures.

    The participation of a client is the sum, over all released models, of the squared number of its updates. With
    `max_participations`, the result is the upper bound that follows from this option. It is None if the clients of each
    step are not known before the run.
    """
    terms = spec.privacy_terms
    assert terms is not None
    seed = spec.experiment.seed
    clients = spec.experiment.client_count
    bound = spec.experiment.max_participations
    participation = participation_of(spec.method.schedule)
    if bound is not None:
        per_release = terms.per_release or 1
        # An asynchronous client with local privacy may send an update that no step uses.
        if steps and not (terms.local and participation is None):
            bound = min(bound, steps * per_release)
        if terms.local:
            return bound
        # The sum is largest if the client's updates are in as few models as possible.
        full_releases, rest = divmod(bound, per_release)
        return full_releases * per_release**2 + rest**2
    schedule: Any = spec.method.schedule
    if participation is not None:
        # With over-selection, the durations of tasks decide which updates of a round count.
        if needs_observations(participation) or schedule.over_selection > 1:
            return None
        return largest_squared(draw_cohort(participation, clients, round, seed) for round in range(steps))
    next_client = NEXT_CLIENT.resolve(getattr(schedule, "next_client", "uniform"))
    if spec.wall or not schedule.scheduled or clients > MAX_SIMULATED or not isinstance(next_client, Uniform):
        return None
    updates = _forecast_client_of_each_update(spec, steps)
    if terms.local:
        # A client may still train one task when the run ends. It also sends the update of this task.
        return int(np.bincount(updates, minlength=clients).max()) + 1
    events = [{"kind": "commit", "client": client} for client in updates]
    return largest_squared(group_updates(events, terms.per_release))


def _forecast_client_of_each_update(spec: RunSpec, steps: int) -> tuple[int, ...]:
    rule = spec.method.update
    assert isinstance(rule, AsyncRule)
    planner = make_planner(spec)
    everyone = np.arange(len(planner.costs))
    cost = make_task_cost(spec, everyone)
    forecast = dry_run(first_ledger(spec, planner), rule, spec.timing, cost, steps=steps)
    return forecast.clients
