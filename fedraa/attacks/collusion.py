"""Colluding attackers, which know the deltas of other clients.

An attacker trains like any client. Then the server, which has the deltas of all clients, replaces the attacker's delta
by a forged one. A synchronous server does this after all clients have sent their deltas (`CollusionAggregator`). An
asynchronous server does this as soon as the attacker's delta arrives. It computes the forged delta from the last deltas
of the clients (`Collusion.replace_update`).
"""

from dataclasses import fields, replace
from typing import Any, ClassVar

import numpy as np

from fedraa.aggregation.aggregator import ClientDelta, RoundTotals
from fedraa.aggregation.checked_aggregator import BoundAggregator
from fedraa.attacks.attack import AttackPlan
from fedraa.components.calls import convert_errors
from fedraa.components.state import Stateful
from fedraa.errors import InputError
from fedraa.messages import Index, Mask, Task, Update, Vector
from fedraa.submodels.assignment import Assignment
from fedraa.submodels.policies.policy import RunContext
from fedraa.vectors.delta_view import DeltaView
from fedraa.vectors.finite import describe_unfit, find_largest


class Collusion(Stateful):
    """The deltas that colluding attackers see, and the delta that they send.

    Args:
        plan: The attack and the attackers.
        size: Number of parameters of the model, d.
        voters: Number of updates or clients that fill an asynchronous server's buffer; without a buffer, number of all
            clients.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("_seen",)

    def __init__(self, plan: AttackPlan, size: int, voters: int) -> None:
        self.plan = plan
        self._size = size
        self._voters = voters
        # The last delta [d] of each client whose deltas the attackers see.
        self._seen: dict[int, Vector] = {}

    def observe(self, client: int, row: Vector) -> None:
        """Store a client's delta [d] if the attackers may see it (`Attack.knowledge`)."""
        if (client in self.plan.attackers) == (self.plan.attack.knowledge == "own"):
            self._seen[client] = row

    def forget(self) -> None:
        """Remove all stored deltas at the end of a round."""
        self._seen.clear()

    def make_row(self, where: Index | slice, delta: Vector) -> Vector:
        """Return a delta [k] as a row [d], with NaN on all other coordinates."""
        row = np.full(self._size, np.nan, np.float32)
        row[where] = delta
        return row

    def forge(self, row: Vector, clients: int, attackers: int) -> Vector:
        """Return the row [d] that an attacker sends instead of its own.

        Args:
            row: The attacker's own delta [d], with NaN on coordinates that it did not train.
            clients: Number of clients of the round or the buffer.
            attackers: Number of attackers among these clients.
        """
        if not self._seen:
            return row
        rows = [self._seen[client] for client in sorted(self._seen)]
        with convert_errors("attack", self.plan.attack):
            shared = self.plan.attack.collude(rows, clients, attackers)
            if not isinstance(shared, np.ndarray) or shared.shape != row.shape:
                raise InputError(
                    "attack", "collude returned a wrong value", got=shared, expected=f"an array [{self._size}]"
                )
        # An attacker sends only the coordinates that it trained.
        forged = np.flatnonzero(~np.isnan(row) & ~np.isnan(shared))
        sent = row.copy()
        with np.errstate(over="ignore"):
            sent[forged] = shared[forged]
        wrong = describe_unfit(find_largest(sent[forged]))
        if wrong:
            raise InputError("attack", f"{type(self.plan.attack).__name__}.collude returned a delta with {wrong}")
        return sent

    def replace_update(self, task: Task, assignment: Assignment, update: Update, clients: int) -> Update:
        """Return the update that an asynchronous server uses: forged if the client is an attacker.

        Args:
            task: The task of the update.
            assignment: The submodel of the task.
            update: The update that the client trained.
            clients: Number of clients of the run.
        """
        where = assignment.where
        row = self.make_row(where, assignment.trained(update.params) - assignment.trained(task.params))
        self.observe(task.client, row)
        if task.client not in self.plan.attackers:
            return update
        attackers = round(self._voters * len(self.plan.attackers) / clients)
        params = update.params.copy()
        trained = np.ones(len(params), bool)
        if assignment.mask is not None:
            trained = assignment.mask
        params[trained] = task.params[trained] + self.forge(row, self._voters, attackers)[where]
        return replace(update, params=params)


class CollusionAggregator(BoundAggregator):
    """An aggregator that replaces the deltas of colluding attackers.

    It passes the deltas of honest clients to the wrapped aggregator at once, and the forged ones at the end of the
    round.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("_collusion", "_held", "_reports")

    def __init__(self, part: Any, run: RunContext, collusion: Collusion) -> None:
        super().__init__(part, run)
        self._collusion = collusion
        # By attacker: its delta in this round as a row [d], and the other fields of its `ClientDelta`.
        self._held: dict[int, dict[str, Any]] = {}
        self._reports = 0

    def add(self, contribution: ClientDelta) -> None:
        client = contribution.client
        self._reports += 1
        row = self._collusion.make_row(contribution.where, contribution.delta)
        self._collusion.observe(client, row)
        if client not in self._collusion.plan.attackers:
            super().add(contribution)
            return
        facts = {field.name: getattr(contribution, field.name) for field in fields(contribution)}
        del facts["client"], facts["change"]
        self._held[client] = {"row": row, **facts}

    def finish(self, totals: RoundTotals) -> tuple[Vector, Mask]:
        for client in sorted(self._held):
            facts = dict(self._held[client])
            row = facts.pop("row")
            forged = self._collusion.forge(row, self._reports, len(self._held))
            where = np.flatnonzero(~np.isnan(row))
            super().add(ClientDelta(client, DeltaView(where, forged[where]), **facts))
        self._held.clear()
        self._reports = 0
        self._collusion.forget()
        return super().finish(totals)
