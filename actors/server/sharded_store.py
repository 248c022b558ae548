"""The store of a model that is divided among server shards, which are actors.

Workers exchange parameters with the shards. The server gets only receipts, and decides the weight of each update.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from ray.exceptions import ActorUnschedulableError, GetTimeoutError, ObjectLostError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors import runtime
from actors.cluster.placement import nodes_for_shards
from actors.pool.liveness import Heartbeat, LivenessProbe, actor_class
from actors.ray_versions import AnyRef
from actors.server.ordered_calls import OrderedCaller
from actors.server.shard import CutOnShards, Route, ShardActor
from fedraa.engine.factories import bind_rule
from fedraa.engine.run_spec import RunSpec
from fedraa.errors import ShardDied
from fedraa.messages import Mask, State, Task, Update, Vector
from fedraa.server.async_rule import ApplyResult, AsyncRule
from fedraa.server.stores.local import shared_again
from fedraa.server.stores.sharded import Split, assemble_pieces
from fedraa.submodels.assignment import Assignment, Submodel

# If MAX_UNSETTLED calls of shards are unfinished, the store waits for them.
MAX_UNSETTLED = 64
# Seconds between two checks for frozen shards.
CHECK_SECONDS = 1.0


class ShardedStore:
    """A Store that divides the parameters [d] among shard actors, if possible on different nodes.

    Its methods raise ShardDied if a shard has died or is frozen.

    Args:
        params: The model [d].
        fragments: The fragments of the model.
        rule: The rule by which updates are applied.
        shards: The number of shards.
        norms: True if the shards must compute the norms of updates.
        heartbeat: The interval and the bounds of liveness probes.
        full_weight: Mask [d] of coordinates to which the rule's `shared_weight` does not apply; None for none.
    """

    def __init__(
        self,
        params: Vector,
        fragments: Sequence[Submodel],
        rule: AsyncRule,
        shards: int,
        *,
        norms: bool,
        heartbeat: Heartbeat,
        full_weight: Mask | None = None,
    ) -> None:
        self._rest = params.copy()
        whole = np.arange(len(params))
        indices = [whole if part.index is None else part.index for part in fragments]
        self._split = split = Split.of(indices, len(params), shards, full_weight)
        self._rule = rule
        self._shards: list[Any] = []
        adds_deltas = rule.mixing_formula == "add-delta"
        for number, node in enumerate(nodes_for_shards(shards)):
            on_node = NodeAffinitySchedulingStrategy(node, soft=False)
            where = [next((p.where for p in pieces if p.shard == number), None) for pieces in split.pieces]
            common = [next((p.common for p in pieces if p.shard == number), None) for pieces in split.pieces]
            actor = actor_class(ShardActor).options(num_cpus=0, scheduling_strategy=on_node)
            share: Any = {}
            if rule.shared_weight != 1:
                share = {"common": common, "shared_weight": rule.shared_weight}
            self._shards.append(
                actor.remote(params[split.own[number]], where, norms=norms, adds_deltas=adds_deltas, **share)
            )
        self._callers = [OrderedCaller(shard) for shard in self._shards]
        self._probes = [LivenessProbe(shard, heartbeat) for shard in self._shards]
        self._routes = [
            runtime.put(Route(tuple(self._shards[p.shard] for p in pieces), tuple(p.place for p in pieces)))
            for pieces in split.pieces
        ]
        self._cuts: dict[int, tuple[int, CutOnShards]] = {}
        self._unsettled: list[AnyRef] = []

    @classmethod
    def of(cls, spec: RunSpec, heartbeat: Heartbeat | None = None) -> "ShardedStore":
        """Start the shards of a run and return its store."""
        experiment = spec.experiment
        rule = bind_rule(spec)
        assert rule.mixing_formula is not None
        norms = experiment.max_update_norm is not None
        return cls(
            spec.params,
            spec.submodels,
            rule,
            experiment.server_shards,
            norms=norms,
            heartbeat=heartbeat or Heartbeat(),
            full_weight=spec.full_weight,
        )

    @property
    def params(self) -> Vector:
        return self._gather_values("values")

    def cut(self, assignment: Assignment, step: int) -> CutOnShards:
        fragment = assignment.label
        if fragment not in self._cuts or self._cuts[fragment][0] != step:
            pieces = self._split.pieces[fragment]
            cuts = [self._callers[piece.shard].call("publish_cut", fragment) for piece in pieces]
            self._cuts[fragment] = (step, self._make_cut(fragment, cuts))
        return self._cuts[fragment][1]

    def apply_update(
        self,
        task: Task,
        assignment: Assignment,
        update: Update,
        stale: int,
        balance: float = 1.0,
        path_length: float = 1.0,
    ) -> ApplyResult:
        assert update.receipt is not None
        mix = self._rule.weight(stale, balance)
        for piece in self._split.pieces[task.fragment]:
            caller = self._callers[piece.shard]
            self._unsettled.append(caller.call("mix", task.fragment, task.id, update.receipt.push, mix))
        if len(self._unsettled) > MAX_UNSETTLED:
            self._settle_shards()
        return ApplyResult(mix)

    def drop(self, task: Task) -> None:
        for piece in self._split.pieces[task.fragment]:
            self._unsettled.append(self._callers[piece.shard].call("forget_task", task.id))

    def leave(self, client: int) -> None:
        """Do nothing, because no rule that works with shards waits for a client."""

    def sent(self, tasks: Iterable[Task]) -> Mapping[int, Vector]:
        buffers = {task.id: _cut_of(task) for task in tasks}
        distinct = list(dict.fromkeys(buffers.values()))
        cuts = self._get_answers(list(chain.from_iterable(buffer.cuts for buffer in distinct)))
        pieces = iter(self._get_answers([piece for [piece] in cuts]))
        values = {}
        for buffer in distinct:
            places = [piece.place for piece in self._split.pieces[buffer.fragment]]
            values[buffer] = assemble_pieces(places, [next(pieces) for _ in places])
        return {number: values[buffer] for number, buffer in buffers.items()}

    def sent_again(self, tasks: list[Task]) -> list[Task]:
        return shared_again(tasks, self._store_pieces)

    def mean(self) -> "MeanOnShards":
        self._unsettled += [caller.call("average") for caller in self._callers]
        return MeanOnShards(self)

    def follow(self, share: float) -> None:
        """Update the mean of the parameters on every shard: mean += share * (parameters - mean).

        `share` is in [0, 1].
        """
        self._unsettled += [caller.call("follow", share) for caller in self._callers]

    def mean_params(self) -> Vector:
        """Return the mean of the parameters [d], collected from all shards."""
        return self._gather_values("mean")

    def restore_mean(self, mean: Vector) -> None:
        for caller, own in zip(self._callers, self._split.own, strict=True):
            self._unsettled.append(caller.call("load_mean_ref", runtime.put(mean[own])))
        # If a shard has not answered this call, the next message to the shard repeats the call with the whole mean.
        # Therefore wait for the answers.
        self._settle_shards()

    def state(self) -> State:
        return {"shards": self.report()}

    def restore(self, params: Vector, state: State) -> None:
        self._rest = params.copy()
        self._cuts = {}
        for caller, own, was in zip(self._callers, self._split.own, state["shards"], strict=True):
            self._unsettled.append(caller.call("load_ref", runtime.put(params[own]), was["pulls"], was["pushes"]))
        self._settle_shards()

    def report(self) -> list[dict[str, object]]:
        tallies = self._get_answers([shard.count_traffic.remote() for shard in self._shards])
        return [{"node": node, "pulls": pulls, "pushes": pushes} for node, pulls, pushes in tallies]

    def check(self) -> None:
        """Raise ShardDied if a shard actor has died."""
        self.report()

    def watch(self) -> None:
        """Raise ShardDied if a shard actor is frozen."""
        for number, probe in enumerate(self._probes):
            silence = probe.silent_seconds()
            if silence is not None:
                raise ShardDied("server_shards", f"shard {number} froze: no sign of life for {silence:.3g} s")

    def close(self) -> None:
        for shard in self._shards:
            runtime.kill(shard)
        self._shards.clear()
        self._callers.clear()
        self._probes.clear()

    def _gather_values(self, method: str) -> Vector:
        """Call a method of every shard, and return its values for all coordinates in one vector [d]."""
        self._settle_shards()
        params = self._rest.copy()
        answers = self._get_answers([getattr(shard, method).remote() for shard in self._shards])
        for own, values in zip(self._split.own, answers, strict=True):
            params[own] = values
        return params

    def _store_pieces(self, task: Task) -> CutOnShards:
        """Send the parameters of a checkpoint's unfinished task to the shards that hold the task's fragment."""
        pieces = self._split.pieces[task.fragment]
        stored = [self._shards[piece.shard].hold.remote(task.params[piece.place]) for piece in pieces]
        return self._make_cut(task.fragment, stored)

    def _make_cut(self, fragment: int, cuts: list[AnyRef]) -> CutOnShards:
        size = sum(len(piece.place) for piece in self._split.pieces[fragment])
        return CutOnShards(size, fragment, self._routes[fragment], tuple(cuts))

    def _settle_shards(self) -> None:
        """Wait until the shards have executed all calls, and raise their errors."""
        self._get_answers(self._unsettled)
        self._unsettled.clear()

    def _get_answers(self, refs: list[AnyRef]) -> list[Any]:
        """Wait for the shards' answers without a time limit. Raise ShardDied if a shard has died or is frozen."""
        try:
            while True:
                with suppress(GetTimeoutError):
                    return list(runtime.get(refs, timeout=CHECK_SECONDS))
                self.watch()
        except (RayActorError, ActorUnschedulableError, ObjectLostError) as error:
            raise ShardDied("server_shards", f"a shard died: {error}") from None


@dataclass(frozen=True)
class MeanOnShards:
    """The mean of the parameters over the versions of the model. Each shard holds its part of the mean."""

    store: ShardedStore

    @property
    def params(self) -> Vector:
        return self.store.mean_params()

    def follow(self, share: float) -> None:
        self.store.follow(share)

    def restore(self, params: Vector) -> None:
        self.store.restore_mean(params)


def _cut_of(task: Task) -> CutOnShards:
    assert isinstance(task.buffer, CutOnShards), "this store has made the buffers of all its tasks"
    return task.buffer
