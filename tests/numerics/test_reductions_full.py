"""A method of full models without its special term equals another method, bit for bit if the sums are the same."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tiny import CLIENTS, LR, Stepped, close, spec, start, steps

from fedraa.engine.run_spec import RunSpec

ORDER = (0, 2, 1, 1, 0)


def model_after(run: RunSpec, rounds: int = 3) -> np.ndarray:
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


def train_one_client_at_a_time(run: RunSpec) -> np.ndarray:
    """Return the model after tasks of one client at a time, so that no update is stale."""
    stepped = Stepped(run)
    for client in ORDER:
        stepped.server.commit(stepped.train(stepped.server.assign(client, 0.0)), 1.0)
    assert stepped.server.step == len(ORDER)
    assert {line["staleness"] for line in stepped.records.of("commit")} == {0}
    return stepped.server.params


def test_shards_distinguish_weights_and_numbers_of_steps() -> None:
    run = spec("fedavg", momentum=0.0)
    assert (model_after(run) != model_after(uniform_fedavg())).any()
    assert len({steps(run, n) for n in range(CLIENTS)}) > 1
    assert np.abs(model_after(run) - start(run)).max() > 0.1


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_fedprox_of_weight_0_equals_fedavg(momentum: float) -> None:
    plain = model_after(spec("fedavg", momentum=momentum))
    np.testing.assert_array_equal(model_after(spec("fedprox", momentum=momentum, prox_mu=0.0)), plain)
    assert (model_after(spec("fedprox", momentum=momentum)) != plain).any()


def test_fedsam_of_radius_0_equals_uniform_fedavg() -> None:
    np.testing.assert_array_equal(
        model_after(spec("fedsam", override={"local.sam_rho": 0.0})), model_after(uniform_fedavg())
    )
    assert (model_after(spec("fedsam", override={"local.sam_rho": 0.1})) != model_after(uniform_fedavg())).any()


def test_fedcm_of_gradient_weight_1_equals_uniform_fedavg() -> None:
    np.testing.assert_array_equal(model_after(without_server_momentum("fedcm")), model_after(uniform_fedavg()))


def test_mofedsam_of_gradient_weight_1_equals_fedsam() -> None:
    np.testing.assert_array_equal(
        model_after(without_server_momentum("mofedsam", override={"local.sam_rho": 0.3})),
        model_after(spec("fedsam", override={"local.sam_rho": 0.3})),
    )


def test_mofedsam_of_radius_0_equals_fedcm() -> None:
    np.testing.assert_array_equal(
        model_after(spec("mofedsam", override={"local.sam_rho": 0.0})), model_after(spec("fedcm"))
    )


@pytest.mark.parametrize("method", ["fedcm", "mimelite"])
def test_first_round_with_server_momentum_is_fedavg_at_a_tenth_of_the_rate(method: str) -> None:
    """The momentum starts at 0, so v = .1 g."""
    plain = uniform_fedavg(lr=LR / 10) if method == "fedcm" else spec("fedavg", momentum=0.0, lr=LR / 10)
    close(model_after(spec(method), 1), model_after(plain, 1))


def test_first_round_of_scaffold_equals_uniform_fedavg() -> None:
    np.testing.assert_array_equal(model_after(spec("scaffold"), 1), model_after(uniform_fedavg(), 1))
    assert (model_after(spec("scaffold"), 2) != model_after(uniform_fedavg(), 2)).any()


def test_scaffold_of_one_client_equals_fedavg() -> None:
    """With one client c = c_1 at all times, so that the correction is 0."""
    flags = {"clients": 1, "partition": "iid"}
    close(model_after(spec("scaffold", **flags)), model_after(uniform_fedavg(**flags)))


def test_splitfed_equals_uniform_fedavg() -> None:
    """Client and server together take the same steps as a client with the whole model."""
    np.testing.assert_array_equal(model_after(spec("splitfed", momentum=0.0)), model_after(uniform_fedavg()))


def test_fedbuff_with_a_buffer_of_one_equals_fedasync_with_mixing_1() -> None:
    """theta + (w - theta) differs from w at most in the last bit."""
    buffered = spec("fedbuff", buffer_size=1, staleness="constant", server_lr=1.0, momentum=0.5)
    mixed = spec("fedasync", mixing=1.0, prox_mu=0.0, staleness="constant")
    np.testing.assert_allclose(
        train_one_client_at_a_time(buffered), train_one_client_at_a_time(mixed), rtol=0, atol=1e-6
    )


def test_fed_raa_with_one_fragment_equals_fedasync() -> None:
    flags: dict[str, Any] = {"mixing": 0.4, "prox_mu": 0.2, "staleness": "hinge"}
    np.testing.assert_array_equal(
        train_one_client_at_a_time(spec("fed-raa", fragments=1, **flags)),
        train_one_client_at_a_time(spec("fedasync", **flags)),
    )


def test_full_buffer_of_fresh_updates_equals_a_round_of_uniform_fedavg() -> None:
    """FedBuff with K = N, if all clients start together: theta + (1 / N) sum (w_i - theta)."""
    stepped = Stepped(spec("fedbuff", buffer_size=CLIENTS, momentum=0.0))
    stepped.round()
    assert stepped.server.step == 1
    close(stepped.server.params, model_after(uniform_fedavg(), 1))
