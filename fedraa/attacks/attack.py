"""The base class of attacks, and the choice of the clients that are attackers.

An attack can change an attacker's training data (`poison`) and the delta that the attacker sends (`forge`). It can also
replace the deltas of all attackers by values computed from the deltas that the attackers see (`collude`). Workers call
`poison` and `forge`. The server calls `collude`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fedraa.aggregation.robust.rows import Numbers, Rows
from fedraa.components.calls import convert_errors
from fedraa.components.registry import ComponentRegistry
from fedraa.data.tree import Tree, list_leaves
from fedraa.errors import InputError
from fedraa.messages import Vector
from fedraa.objectives import Objective
from fedraa.rng import generator

Labels = npt.NDArray[Any]


class Attack:
    """A change of the attackers' training data or deltas. A subclass overrides at least one method.

        class Double(fl.Attack):
            def forge(self, delta, rng):
                return 2 * delta

    Draw random numbers only from `rng`. An attack must not keep state, because each worker has a copy.

    Attributes:
        changes_labels: True if `poison` changes labels. Then the labels must be classes.
        colludes: True if the attack defines `collude`.
        knowledge: The deltas that colluding attackers see: `honest` for those of honest clients, `own` for their own.
    """

    changes_labels: ClassVar[bool] = False
    colludes: ClassVar[bool] = False
    knowledge: Literal["honest", "own"] = "honest"

    def start(self, classes: int, example: Tree) -> None:
        """Receive facts about the run's data before training.

        Args:
            classes: Number of classes of the labels.
            example: Some training samples [b, ...] as tensors.

        Raises:
            InputError: The attack cannot use these data.
        """

    def poison(self, x: Tree, y: Labels, rng: np.random.Generator) -> tuple[Tree, Labels]:
        """Return new inputs and targets on which an attacker trains.

        Args:
            x: Inputs [n, ...].
            y: Targets [n, ...].
            rng: A generator that gives the same numbers in every task of the client.
        """
        return x, y

    def forge(self, delta: Vector, rng: np.random.Generator) -> Vector:
        """Return the delta [k] that an attacker sends.

        Args:
            delta: Trained weights minus received weights [k].
            rng: The random generator of this task.
        """
        return delta

    def collude(self, rows: Rows, clients: int, attackers: int) -> Numbers:
        """Return the delta [d] that all attackers send. Where it is NaN, each attacker sends its own value.

        Args:
            rows: The deltas that the attackers see: arrays [d], with NaN on coordinates that a client did not train.
            clients: Number of clients of the round or the buffer, n.
            attackers: Number of attackers among these clients, m.
        """
        raise NotImplementedError


ATTACK: ComponentRegistry[Attack] = ComponentRegistry("attack", ("start", "poison", "forge", "collude"), base="Attack")


@dataclass(frozen=True)
class AttackPlan:
    """The attack of one run, and the clients that are attackers.

    Attributes:
        attack: The attack.
        attackers: The client numbers of the attackers.
        seed: Seed of the run.
    """

    attack: Attack
    attackers: frozenset[int]
    seed: int

    def poison(self, client: int, x: Tree, y: Labels) -> tuple[Tree, Labels]:
        """Return the inputs [n, ...] and targets [n, ...] on which the attacker `client` trains."""
        with convert_errors("attack", self.attack):
            inputs, targets = self.attack.poison(x, y, generator(self.seed, "poison", client))
            shapes = [array.shape for array in (*list_leaves(inputs), targets)]
        expected = [array.shape for array in (*list_leaves(x), y)]
        if shapes != expected:
            problem = f"{type(self.attack).__name__}.poison returned arrays of wrong shapes"
            raise InputError("attack", problem, got=shapes, expected=f"the shapes of its arguments, {expected}")
        return inputs, targets

    def try_poison(self, client: int, x: Tree, y: Labels, classes: int) -> None:
        """Poison the samples of an attacker. Raise InputError if the attack fails, or a label is not a class.

        Args:
            client: The attacker.
            x: Its inputs [n, ...].
            y: Its targets [n, ...].
            classes: The number of classes; 0 if the targets are not classes.
        """
        labels = self.poison(client, x, y)[1]
        if classes and (labels.dtype.kind not in "iu" or ((labels < 0) | (labels >= classes)).any()):
            problem = f"{type(self.attack).__name__}.poison returned wrong labels"
            got = sorted(set(labels.tolist()))
            raise InputError("attack", problem, got=got, expected=f"integers from 0 to {classes - 1}")

    def forge(self, client: int, turn: int, delta: Vector) -> Vector:
        """Return the delta [k] that the attacker `client` sends after its task number `turn` (from 0)."""
        with convert_errors("attack", self.attack):
            forged = np.asarray(self.attack.forge(delta, generator(self.seed, "attack", client, turn)), np.float32)
        if forged.shape != delta.shape:
            problem = f"{type(self.attack).__name__}.forge returned a wrong value"
            raise InputError("attack", problem, got=forged, expected=f"an array {list(delta.shape)}, like the delta")
        return forged


def check_attack(attack: Attack, objective: Objective) -> None:
    """Raise InputError if the attack changes labels but the targets are not classes."""
    if attack.changes_labels and not objective.classifies:
        problem = f"{type(attack).__name__} changes class labels, but the targets of {objective.name} are not classes"
        raise InputError("attack", problem, hint="use an attack on deltas, such as sign-flip")


def make_attack_plan(attack: Any, share: float, *, clients: int, seed: int) -> AttackPlan | None:
    """Return a run's attack with round(share * clients) random attackers, or None for no attack.

    Args:
        attack: The attack as a name, an import path or an object; None for no attack.
        share: The share of attackers among the clients.
        clients: Number of clients.
        seed: Seed of the run.

    Raises:
        InputError: The run would have no attacker or no honest client.
    """
    if attack is None:
        return None
    count = round(share * clients)
    if clients == 1:
        raise InputError("attack", "a run with one client would have no honest client", hint="use more clients")
    if not 0 < count < clients:
        expected = f"a share of {clients} clients that makes at least one an attacker and leaves at least one honest"
        raise InputError("attackers", got=share, expected=expected)
    drawn = generator(seed, "attackers").choice(clients, count, replace=False)
    return AttackPlan(ATTACK.copy_for_run(attack), frozenset(drawn.tolist()), seed)
