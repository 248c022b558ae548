"""A method of full models without its special term equals another method, bit for bit if the sums are the same."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tiny import CLIENTS, LR, Stepped, close, spec, start, steps

from fedraa.engine.run_spec import RunSpec

ORDER = (0, 2, 1, 1, 0)


def after(run: RunSpec, rounds: int = 3) -> np.ndarray:
    stepped = Stepped(run)
    for _ in range(rounds):
        stepped.round()
    assert stepped.server.step == rounds
    return stepped.server.params


def uniform_fedavg(**flags: Any) -> RunSpec:
    """Return FedAvg with plain means, as the other methods have, and with plain SGD."""
    run = spec("fedavg", momentum=0.0, **flags)
    return replace(run, method=replace(run.method, update=replace(run.method.update, weights="uniform")))


def without_server_momentum(method: str, **flags: Any) -> RunSpec:
    """Return the method with weight 1 on the gradient, and therefore 0 on the server's momentum."""
    run = spec(method, **flags)
    return replace(run, method=replace(run.method, local=replace(run.method.local, grad_mix=1.0)))


def alone(run: RunSpec) -> np.ndarray:
    """Return a run in which only one client trains at a time, so that no update is stale."""
    stepped = Stepped(run)
    for client in ORDER:
        stepped.server.commit(stepped.train(stepped.server.assign(client, 0.0)), 1.0)
    assert stepped.server.step == len(ORDER)
    assert {line["staleness"] for line in stepped.records.of("commit")} == {0}
    return stepped.server.params


def test_the_shards_tell_weights_and_steps_apart() -> None:
    run = spec("fedavg", momentum=0.0)
    assert (after(run) != after(uniform_fedavg())).any()
    assert len({steps(run, n) for n in range(CLIENTS)}) > 1
    assert np.abs(after(run) - start(run)).max() > 0.1


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_fedprox_of_weight_0_is_fedavg(momentum: float) -> None:
    plain = after(spec("fedavg", momentum=momentum))
    np.testing.assert_array_equal(after(spec("fedprox", momentum=momentum, prox_mu=0.0)), plain)
    assert (after(spec("fedprox", momentum=momentum)) != plain).any()


def test_fedsam_of_radius_0_is_uniform_fedavg() -> None:
    np.testing.assert_array_equal(after(spec("fedsam", override={"local.sam_rho": 0.0})), after(uniform_fedavg()))
    assert (after(spec("fedsam", override={"local.sam_rho": 0.1})) != after(uniform_fedavg())).any()


def test_fedcm_of_gradient_weight_1_is_uniform_fedavg() -> None:
    np.testing.assert_array_equal(after(without_server_momentum("fedcm")), after(uniform_fedavg()))


def test_mofedsam_of_gradient_weight_1_is_fedsam() -> None:
    np.testing.assert_array_equal(
        after(without_server_momentum("mofedsam", override={"local.sam_rho": 0.3})),
        after(spec("fedsam", override={"local.sam_rho": 0.3})),
    )


def test_mofedsam_of_radius_0_is_fedcm() -> None:
    np.testing.assert_array_equal(after(spec("mofedsam", override={"local.sam_rho": 0.0})), after(spec("fedcm")))


@pytest.mark.parametrize("method", ["fedcm", "mimelite"])
def test_first_round_of_a_momentum_is_fedavg_at_a_tenth_of_the_rate(method: str) -> None:
    """The momentum starts at 0, so v = .1 g."""
    plain = uniform_fedavg(lr=LR / 10) if method == "fedcm" else spec("fedavg", momentum=0.0, lr=LR / 10)
    close(after(spec(method), 1), after(plain, 1))


def test_first_round_of_scaffold_is_uniform_fedavg() -> None:
    np.testing.assert_array_equal(after(spec("scaffold"), 1), after(uniform_fedavg(), 1))
    assert (after(spec("scaffold"), 2) != after(uniform_fedavg(), 2)).any()


def test_scaffold_of_one_client_is_fedavg() -> None:
    """With one client c = c_1 at all times, so that the correction is 0."""
    flags = {"clients": 1, "partition": "iid"}
    close(after(spec("scaffold", **flags)), after(uniform_fedavg(**flags)))


def test_splitfed_is_uniform_fedavg() -> None:
    """Client and server together take the same steps as a client with the whole model."""
    np.testing.assert_array_equal(after(spec("splitfed", momentum=0.0)), after(uniform_fedavg()))


def test_fedbuff_of_one_arrival_is_fedasync_of_mixing_1() -> None:
    """theta + (w - theta) differs from w at most in the last bit."""
    buffered = spec("fedbuff", buffer_size=1, staleness="constant", server_lr=1.0, momentum=0.5)
    mixed = spec("fedasync", mixing=1.0, prox_mu=0.0, staleness="constant")
    np.testing.assert_allclose(alone(buffered), alone(mixed), rtol=0, atol=1e-6)


def test_fed_raa_of_one_fragment_is_fedasync() -> None:
    flags: dict[str, Any] = {"mixing": 0.4, "prox_mu": 0.2, "staleness": "hinge"}
    np.testing.assert_array_equal(alone(spec("fed-raa", fragments=1, **flags)), alone(spec("fedasync", **flags)))


def test_full_buffer_of_fresh_updates_is_a_round_of_uniform_fedavg() -> None:
    """FedBuff with K = N, if all clients start together: theta + (1 / N) sum (w_i - theta)."""
    stepped = Stepped(spec("fedbuff", buffer_size=CLIENTS, momentum=0.0))
    stepped.round()
    assert stepped.server.step == 1
    close(stepped.server.params, after(uniform_fedavg(), 1))
