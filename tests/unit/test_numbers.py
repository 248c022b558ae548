"""The numbers of the parts that are built in: what is out of their range, or none, is one sentence."""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

import fedraa as fl
from fedraa.aggregation.registry import AGGREGATOR
from fedraa.callbacks import CALLBACKS
from fedraa.client.compression import COMPRESSOR
from fedraa.client.local_training import Solver
from fedraa.components.registry import Seam
from fedraa.composition.method import Method
from fedraa.data.partition.divide import PARTITIONERS
from fedraa.data.transforms.make import TRANSFORMS
from fedraa.ledger.participation import PARTICIPATION
from fedraa.methods.fedbuff import Buffer
from fedraa.objectives.builtin import OBJECTIVE
from fedraa.server.async_rule import ASYNC_RULE
from fedraa.server.optimizers import SERVER_OPTIMIZER
from fedraa.server.round_update import Mean
from fedraa.server.staleness import STALENESS
from fedraa.submodels.policies import SUBMODEL
from fedraa.submodels.policies.policy import Capacities, SubmodelSampler
from fedraa.submodels.policies.slices import Prefix

SEAMS: tuple[Seam[Any], ...] = (
    *(PARTITIONERS, TRANSFORMS, OBJECTIVE, SERVER_OPTIMIZER, STALENESS, ASYNC_RULE, SUBMODEL, PARTICIPATION),
    *(COMPRESSOR, AGGREGATOR, CALLBACKS),
)


def numbers() -> Iterator[Any]:
    for seam in SEAMS:
        for name, make in seam.names().items():
            for value in inspect.signature(make).parameters.values():
                if type(value.default) in (int, float):
                    yield pytest.param(seam, f"{name}({value.name}=%s)", id=f"{seam.name}-{name}-{value.name}")


@pytest.mark.parametrize(("seam", "text"), list(numbers()))
def test_what_is_no_finite_number_is_refused_everywhere(seam: Seam[Any], text: str) -> None:
    for given in ("'x'", "1e999", "-1e999", "[1]"):
        with pytest.raises(ValueError, match=r"^[a-z_]+:? .*[^\n]$"):
            seam.make(text % given)


@pytest.mark.parametrize(
    ("seam", "text", "message"),
    [
        (ASYNC_RULE, "buffer(server_lr=-1)", "server_lr is -1; it should be greater than 0"),
        (ASYNC_RULE, "buffer(size=2.5)", "size is 2.5; it should be a valid integer"),
        (ASYNC_RULE, "staleness-mix(mixing=1.5)", "mixing is 1.5; it should be less than or equal to 1"),
        (ASYNC_RULE, "fedgmr(exponent=-1)", "exponent is -1; it should be greater than or equal to 0"),
        (SERVER_OPTIMIZER, "momentum(beta=1)", "beta is 1; it should be less than 1"),
        (SERVER_OPTIMIZER, "adam(tau=0)", "tau is 0; it should be greater than 0"),
        (STALENESS, "polynomial(exponent='x')", "exponent is 'x'; it should be a valid number"),
        (SUBMODEL, "adaptive-pruning(density=2)", "density is 2; it should be less than or equal to 1"),
        (SUBMODEL, "layer-cut(at=True)", "at is True; it should be a valid integer"),
        (SUBMODEL, "four-way(parts=1)", "parts is 1; it should be greater than or equal to 2"),
        (SUBMODEL, "arbitrary(parts=63)", "parts is 63; it should be less than or equal to 62"),
        (SUBMODEL, "pruned(parts=128)", "parts is 128; it should be less than or equal to 127"),
        (SUBMODEL, "fragments(ratios=('a', 1.0))", "ratios is ('a', 1.0); it should be a valid number"),
        (TRANSFORMS, "normalize(mean=(True,), std=(1,))", "mean is (True,); it should be a valid number"),
        (SUBMODEL, "arbitrary(level='Q')", "level is 'Q'; it should be 'L', 'S' or 'MIX'"),
        (SUBMODEL, "disjoint-groups(scaled='no')", "scaled is 'no'; it should be a valid boolean"),
        (PARTITIONERS, "labels(per_client=0)", "per_client is 0; it should be greater than or equal to 1"),
        (PARTITIONERS, "dirichlet(alpha=True)", "alpha is True; it should be a valid number"),
        (PARTITIONERS, "noise(level=-1)", "level is -1; it should be greater than or equal to 0"),
        (PARTICIPATION, "sample(count=2.5)", "count is 2.5; it should be a valid integer"),
        (PARTICIPATION, "bernoulli(share=True)", "share is True; it should be a valid number"),
        (COMPRESSOR, "topk(share=2)", "share is 2; it should be less than or equal to 1"),
        (TRANSFORMS, "flip(share=True)", "share is True; it should be a valid number"),
        (ASYNC_RULE, "buffer(size='x')", "size is 'x'; it should be a valid integer"),
        (ASYNC_RULE, "ringmaster(delay_limit=2.5)", "delay_limit is 2.5; it should be a valid integer"),
        (ASYNC_RULE, "evened-delta(even=True)", "even is True; it should be a valid number"),
        (ASYNC_RULE, "delta(spread=3)", "spread is 3; it should be a valid boolean"),
        (SERVER_OPTIMIZER, "amsgrad(corrected='no')", "corrected is 'no'; it should be a valid boolean"),
        (AGGREGATOR, "memorised(mifa=1)", "mifa is 1; it should be a valid boolean"),
        (CALLBACKS, "early-stopping(patience=0)", "patience is 0; it should be greater than or equal to 1"),
        (CALLBACKS, "early-stopping(mode='up')", "mode is 'up'; it should be 'max' or 'min'"),
    ],
)
def test_the_sentence_names_the_value_and_what_it_takes(seam: Seam[Any], text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'{seam.name}: {text}: {message}')}$"):
        seam.make(text)


def test_a_value_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^async_rule: 'buffer\(size=2, size=3\)' has size twice; give it once$"):
        ASYNC_RULE.make("buffer(size=2, size=3)")


@pytest.mark.parametrize(
    ("method", "flags", "said"),
    [
        ("fedbuff", {"buffer_size": 0}, "has update Buffer: size is 0; it should be greater than or equal to 1"),
        ("fedavg", {"momentum": 1.0}, "has local Solver: momentum is 1.0; it should be less than 1"),
        ("fedasync", {"concurrency": 2.5}, "has schedule Asynchronous: concurrency is 2.5; it should be a valid"),
    ],
)
def test_the_choices_of_an_own_method_are_held_to_their_numbers(method: str, flags: dict[str, Any], said: str) -> None:
    own = fl.method(method).replace(**flags)
    with pytest.raises(ValueError, match=rf"^method: {method} {re.escape(said)}"):
        fl.run(method=own, dataset="digits", engine="local", quiet=True)


class AsksForMore(SubmodelSampler):
    """Wants of clients what they do not send."""

    def __init__(self, policy: fl.SubmodelPolicy, run: Any, name: str) -> None:
        self.asks = (name,)  # type: ignore[misc]  # a ClassVar
        self._sampler = fl.SubmodelPolicy.bind(policy, run)

    def draw(self, context: Any) -> Any:
        return self._sampler.draw(context)


@dataclass(frozen=True)
class Asking(fl.SubmodelPolicy):
    name: str

    def draw(self, context: Any) -> Any:
        return context.run.units(context.run.traced.full())

    def bind(self, run: Any) -> SubmodelSampler:
        return AsksForMore(self, run, self.name)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (lambda: Method(submodel=Asking("squares")), "method: own takes squares from its clients, which send none; "),
        (lambda: Method(submodel=Asking("hints")), "method: own takes hints from its clients, who can send squares, "),
        (lambda: Method(local=Solver(terms=None)), "local_terms: got None; takes a tuple of LocalTerms"),  # type: ignore[arg-type]  # what is refused
        (lambda: Method(update=Mean(auxiliary=None)), "auxiliary: got None; takes an object of NoAuxiliary"),  # type: ignore[arg-type]  # likewise
        (lambda: Method(submodel=Prefix(Capacities((0.5, 1.25)))), "capacities: got 1.25; takes shares of the model"),
        (lambda: Method(submodel=Prefix(Capacities(redraw=1))), "redraw: got 1; takes True or False"),  # type: ignore[arg-type]  # likewise
        (lambda: Method(local=Solver(steps="20")), "local_steps: got '20'; takes a number from 1, auto, "),
    ],
)
def test_what_an_own_method_cannot_be_is_one_sentence(method: Callable[[], Method], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(said)}[^\n]*$"):
        fl.run(method=method(), rounds=1, engine="local", clients=2, hidden=(4,), quiet=True, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_part_within_a_part_and_an_object_are_looked_at_too() -> None:
    with pytest.raises(ValueError, match=r"^server_optimizer: amsgrad\(server_lr=-1\): server_lr is -1; it should be"):
        ASYNC_RULE.make("fadas(size=3, optimizer='amsgrad(server_lr=-1)')")
    with pytest.raises(ValueError, match=r"^async_rule: .*Buffer.*: server_lr is -2; it should be greater than 0$"):
        ASYNC_RULE.make(Buffer(server_lr=-2))
    with pytest.raises(ValueError, match=r"^async_rule: buffer: server_lr is -2; it should be greater than 0$"):
        ASYNC_RULE.make({"kind": "buffer", "server_lr": -2})


def test_numbers_of_numpy_are_numbers_and_annotations_of_others_are_their_own() -> None:
    assert ASYNC_RULE.make(Buffer(size=np.int64(3), server_lr=np.float32(0.5))).per_step == 3

    @dataclass
    class Own(fl.ServerOptimizer):
        server_lr: Annotated["Unknown", "of a library"] = -1.0  # type: ignore[name-defined] # noqa: F821

        def step(self, params: Any, delta: Any, moved: Any) -> None: ...

    assert SERVER_OPTIMIZER.make(Own()).server_lr == -1


class Inherits(Buffer):
    """An own part, which has the fields of one of ours."""


@dataclass
class Annotates(Buffer):
    server_lr: float = -1.0


def test_an_own_part_is_held_to_what_it_inherits() -> None:
    with pytest.raises(ValueError, match=r"^async_rule: .*Inherits.*: size is 2\.5; it should be a valid integer$"):
        ASYNC_RULE.make(Inherits(size=2.5))  # type: ignore[arg-type]  # what is refused
    with pytest.raises(ValueError, match=r"size is 2\.5; it should be a valid integer$"):
        ASYNC_RULE.make(Annotates(size=2.5))  # type: ignore[arg-type]  # likewise
    assert ASYNC_RULE.make(Inherits(size=np.int64(3))).per_step == 3
    assert ASYNC_RULE.make(Annotates()).server_lr == -1  # type: ignore[attr-defined]  # a seam makes any rule
