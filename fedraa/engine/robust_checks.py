"""Checks of robust aggregators and attacks before the start of a run."""

import numpy as np

from fedraa.aggregation.registry import AGGREGATOR
from fedraa.aggregation.robust.fltrust import FLTrust
from fedraa.aggregation.robust.rows import RobustAggregator
from fedraa.attacks.alie import ALIE
from fedraa.attacks.ipm import IPM
from fedraa.components.text import text_of
from fedraa.composition.overrides import chosen_value
from fedraa.engine.run_spec import RunSpec, participation_of
from fedraa.errors import InputError
from fedraa.ledger.participation import All, count_of, expected_cohort
from fedraa.numbers import format_count


def check_robust(spec: RunSpec) -> None:
    """Raise InputError if a robust aggregator gets too few deltas, or if its root client is missing.

    The root client of FLTrust holds trusted data. It must be honest and train in every round.
    """
    description = spec.method.aggregator
    if description is None:
        return
    aggregator = AGGREGATOR.resolve(description)
    if not isinstance(aggregator, RobustAggregator):
        return
    clients = spec.experiment.client_count
    participation = participation_of(spec.method.schedule)
    needed = aggregator.min_clients
    if participation is None:
        voters = min(clients, spec.method.update.per_step)
        remedy = f"give --buffer-size {needed} or more"
        size = chosen_value(spec.experiment, "buffer_size")
        if size is not None and size > clients:
            problem = f"the buffer of {text_of(aggregator)} waits for updates of different clients"
            expected = f"at most {clients}, the number of clients"
            raise InputError("buffer_size", problem, got=size, expected=expected)
    else:
        voters = round(expected_cohort(participation, clients) or clients)
        remedy = f"give a participation of {needed} or more clients"
    if voters < needed:
        if voters == clients:
            remedy = "give more clients"
        problem = f"{text_of(aggregator)} protects only with {needed} or more clients; it gets {voters}"
        raise InputError("aggregator", problem, hint=f"{remedy}, or another aggregator")
    every_client = isinstance(participation, All)
    if isinstance(aggregator, FLTrust) and spec.attack is not None and aggregator.root in spec.attack.attackers:
        problem = f"client {aggregator.root} holds the root data of FLTrust, but this seed makes it an attacker"
        raise InputError("aggregator", problem, hint="give another root, such as fltrust(root=1), or another seed")
    if isinstance(aggregator, FLTrust) and (not every_client or aggregator.root >= clients):
        problem = f"client {aggregator.root} must train in every round, because it holds the root data"
        raise InputError("aggregator", problem, hint="let all clients participate, and set root to one of them")
    deadline = getattr(spec.method.schedule, "deadline", None)
    if isinstance(aggregator, FLTrust) and deadline is not None:
        problem = f"a round has no effect if client {aggregator.root}, which holds the root data, is late"
        raise InputError("deadline", problem, got=deadline, hint="leave it out, or give another aggregator")


def check_attack(spec: RunSpec) -> None:
    """Raise InputError if the attack fails, too few clients are honest, or the attack lacks other clients' deltas."""
    if spec.attack is None:
        return
    # Without this trial, a failing attack would only make its clients fail, and the run would have no attack.
    client = min(spec.attack.attackers)
    if spec.data.source is None:
        classes = spec.data.dataset.classes if spec.objective.classifies else 0
        spec.attack.try_poison(client, *spec.data.client(client), classes)
    spec.attack.forge(client, 0, np.full_like(spec.params, 0.001))
    count = spec.experiment.personalised
    if count is not None and count > len(spec.personal_clients):
        expected = f"at most {len(spec.personal_clients)}, the number of honest clients with their own test samples"
        raise InputError("personalised", got=count, expected=expected)
    if not spec.attack.attack.colludes:
        return
    attack = text_of(spec.attack.attack)
    if spec.experiment.server_shards > 1:
        problem = f"{attack} needs all deltas in one process"
        raise InputError("server_shards", problem, got=spec.experiment.server_shards, hint="leave it out")
    auxiliary = spec.method.auxiliary
    if auxiliary is not None and auxiliary.reads_deltas:
        problem = f"the server of {spec.experiment.method} reads each delta before {attack} can replace it"
        raise InputError("attack", problem, hint="give an attack that reads only its own delta, such as sign-flip")


def warn_of_many_attackers(spec: RunSpec) -> list[str]:
    """Return a warning if the run has more attackers than its aggregator withstands."""
    description = spec.method.aggregator
    if spec.attack is None or description is None:
        return []
    aggregator = AGGREGATOR.resolve(description)
    if not isinstance(aggregator, RobustAggregator):
        return []
    clients = spec.experiment.client_count
    attackers = len(spec.attack.attackers)
    tolerated = aggregator.count_tolerated(clients)
    if tolerated is None or attackers <= tolerated:
        return []
    withstood = format_count(tolerated, "attacker")
    present = format_count(attackers, "attacker")
    return [
        f"aggregator: {text_of(aggregator)} withstands {withstood} among {clients} clients, and the run has {present}; "
        "give it a larger number or share unless this is intended"
    ]


def warn_of_unseen_deltas(spec: RunSpec) -> list[str]:
    """Return a warning if the attackers of ALIE or IPM never see the two deltas of a round that they need."""
    participation = participation_of(spec.method.schedule)
    if participation is None or spec.attack is None or not isinstance(spec.attack.attack, ALIE | IPM):
        return []
    attackers = len(spec.attack.attackers)
    cohort = count_of(participation) or spec.experiment.client_count
    seen = min(cohort - 1, spec.experiment.client_count - attackers)
    if spec.attack.attack.knowledge == "own":
        seen = min(cohort, attackers)
    if seen >= 2:
        return []
    return [
        f"attack: {text_of(spec.attack.attack)} has no effect, because its attackers see fewer than two deltas in a "
        "round; give a participation of more clients, another share of attackers, or another attack"
    ]
