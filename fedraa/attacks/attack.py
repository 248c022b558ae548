"""The interface of an attack, and the clients that carry it out.

An attack acts at up to three places. A worker changes the training data of an attacker (`poison`) and the delta that it
sends (`forge`). The server replaces the deltas of attackers by a delta that is made from those of other clients
(`collude`).
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fedraa.aggregation.robust.rows import Numbers, Rows
from fedraa.components.registry import ComponentRegistry
from fedraa.data.tree import Tree
from fedraa.errors import InputError
from fedraa.messages import Vector
from fedraa.objectives import Objective
from fedraa.rng import generator

Labels = npt.NDArray[Any]


class Attack:
    """An attack: a change of the attackers' training data or deltas.

        class Double(fl.Attack):
            def forge(self, delta, rng):
                return 2 * delta

    Every draw comes from the `rng` of a method. An attack keeps no state, because each worker has a copy.

    Attributes:
        changes_labels: True if `poison` changes labels, which must be classes.
        colludes: True if the attack defines `collude`.
        knowledge: The deltas that colluding attackers see: those of `honest` clients, or their `own`.
    """

    changes_labels: ClassVar[bool] = False
    colludes: ClassVar[bool] = False
    knowledge: Literal["honest", "own"] = "honest"

    def start(self, classes: int, example: Tree) -> None:
        """Receive the facts about the run's data. Raise InputError if the attack does not fit these data.

        Args:
            classes: Number of classes.
            example: Some training samples [b, ...] as tensors.
        """

    def poison(self, x: Tree, y: Labels, rng: np.random.Generator) -> tuple[Tree, Labels]:
        """Return the training data of an attacker. It must not change the arguments.

        Args:
            x: Inputs [n, ...].
            y: Targets [n, ...].
            rng: Random numbers, the same in every task of the client.
        """
        return x, y

    def forge(self, delta: Vector, rng: np.random.Generator) -> Vector:
        """Return the delta [k] that an attacker sends instead of `delta` [k].

        Args:
            delta: Trained weights minus received weights.
            rng: Random numbers of this task.
        """
        return delta

    def collude(self, rows: Rows, clients: int, attackers: int) -> Numbers:
        """Return the delta [d] that all attackers send. On coordinates with NaN, each attacker sends its own values.

        Args:
            rows: The deltas that the attackers see: arrays [d], NaN on coordinates that a client did not train.
            clients: Number of clients of the round or the buffer, n.
            attackers: Number of attackers among them, m.
        """
        raise NotImplementedError


ATTACK: ComponentRegistry[Attack] = ComponentRegistry("attack", ("start", "poison", "forge", "collude"))


@dataclass(frozen=True)
class AttackPlan:
    """An attack in one run.

    Attributes:
        attack: The attack.
        attackers: The clients that carry it out.
        seed: Seed of the run.
    """

    attack: Attack
    attackers: frozenset[int]
    seed: int

    def poison(self, client: int, x: Tree, y: Labels) -> tuple[Tree, Labels]:
        """Return the training data of an attacker."""
        return self.attack.poison(x, y, generator(self.seed, "poison", client))

    def forge(self, client: int, turn: int, delta: Vector) -> Vector:
        """Return the delta [k] that an attacker sends after its task number `turn`."""
        forged = self.attack.forge(delta, generator(self.seed, "attack", client, turn))
        return np.asarray(forged, np.float32)


def check_attack(attack: Attack, objective: Objective) -> None:
    """Raise InputError if the attack changes labels, and the objective has other targets."""
    if attack.changes_labels and not objective.classifies:
        problem = f"{type(attack).__name__} changes labels of classes, and {objective.name} has other targets"
        raise InputError("attack", problem, hint="give an attack on deltas, such as sign-flip")


def make_attack_plan(attack: Any, share: float, *, clients: int, seed: int) -> AttackPlan | None:
    """Return the attack of a run, or None without one. The seed draws round(share * clients) attackers.

    Args:
        attack: The attack in any form, or None.
        share: The share of attackers among the clients.
        clients: Number of clients.
        seed: Seed of the run.

    Raises:
        InputError: There is only one client, or the share is less than one client or not less than all.
    """
    if attack is None:
        return None
    count = round(share * clients)
    if clients == 1:
        raise InputError("attack", "a run with one client has no honest client", hint="give more clients")
    if not 0 < count < clients:
        expected = f"a share that is 1 to {clients - 1} of the {clients} clients"
        raise InputError("attackers", got=share, expected=expected)
    drawn = generator(seed, "attackers").choice(clients, count, replace=False)
    return AttackPlan(ATTACK.own(attack), frozenset(drawn.tolist()), seed)
