"""Small errors in the code, each of which a test must detect: training, server, policies, costs, defaults, Ray layer.

Each error replaces the text `old`, which is exactly once in `file`, by the text `new`. Then one of the test files in
`tests` must fail.
"""

from typing import NamedTuple

DEFAULTS = "tests/unit/settings/test_paper_defaults.py"
FULL = "tests/numerics/test_methods_full.py"
TERMS = "tests/numerics/test_methods_terms.py"
SUBMODELS = "tests/numerics/test_methods_submodels.py"
POLICIES = "tests/numerics/test_policies.py"
REGIONS = "tests/numerics/test_masked_regions.py"
TRAINING = "tests/numerics/test_local_training.py"
COSTS = "tests/numerics/test_task_costs.py"
RAA = "tests/numerics/test_fed_raa.py"
QUILT = "tests/numerics/test_fed_quilt.py"
MUON_DELTA = "tests/numerics/test_muon_delta.py"
ASYNC_RULES = "tests/unit/server/test_async_rules.py"
FLEET = "tests/unit/devices/test_fleet.py"
SCHEDULERS = "tests/unit/schedulers/test_schedulers.py"
BALANCE = "tests/unit/server/test_balance.py"
AUTO = "tests/unit/devices/test_auto_steps.py"
ON_TERMS = "tests/unit/settings/test_terms.py"
SPACE = "tests/unit/tuning/test_space.py"
TUNER = "tests/unit/tuning/test_tuner.py"
GUARDS = "tests/numerics/test_guards.py"
HELD_BACK = "tests/unit/data/test_validation_split.py"
SIMULATED_EXECUTOR = "tests/unit/actors/test_executor_simulation.py"
SIMULATED = "tests/unit/actors/test_simulated_run.py"
SHARED_MEMORY = "tests/unit/engine/test_shared_memory.py"


class Mutant(NamedTuple):
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _in(file: str, *several: tuple[str, str, str]) -> list[Mutant]:
    return [Mutant(file, old, new, (test,)) for old, new, test in several]


MUTANTS: list[Mutant] = [
    # These errors change defaults that papers state.
    *_in(
        "fedraa/methods/fed_raa.py",
        ("local=LocalTraining(prox_mu=0.005)", "local=LocalTraining(prox_mu=0.5)", DEFAULTS),
    ),
    *_in(
        "fedraa/methods/fedsam.py",
        ("local=replace(PLAIN_SGD, sam_rho=0.5),", "local=replace(PLAIN_SGD, sam_rho=5.0),", DEFAULTS),
        (
            "local=replace(PLAIN_SGD, sam_rho=0.5, grad_mix=0.1)",
            "local=replace(PLAIN_SGD, sam_rho=0.05, grad_mix=0.1)",
            DEFAULTS,
        ),
    ),
    *_in(
        "fedraa/methods/subdismo.py",
        ("local=replace(PLAIN_SGD, sam_rho=0.1)", "local=replace(PLAIN_SGD, sam_rho=0.2)", DEFAULTS),
    ),
    *_in(
        "fedraa/methods/fedcm.py",
        ("local=replace(PLAIN_SGD, grad_mix=0.1)", "local=replace(PLAIN_SGD, grad_mix=0.9)", DEFAULTS),
        (
            "np.divide(delta, np.float32(-scale), out=self._momentum, where=moved)",
            "np.divide(delta, np.float32(scale), out=self._momentum, where=moved)",
            FULL,
        ),
    ),
    *_in(
        "fedraa/methods/mimelite.py",
        (
            "local=replace(PLAIN_SGD, grad_mix=0.1, full_gradient=True)",
            "local=replace(PLAIN_SGD, grad_mix=0.9, full_gradient=True)",
            DEFAULTS,
        ),
        (
            "fresh = (1 - self._beta) * mean[piece] + self._beta * momentum",
            "fresh = mean[piece] + self._beta * momentum",
            FULL,
        ),
    ),
    *_in("fedraa/methods/fedavg.py", ('update=Mean(weights="samples")', "update=Mean()", DEFAULTS)),
    *_in(
        "fedraa/methods/heterofl.py",
        (
            "LocalTraining(momentum=0.9, weight_decay=5e-4, clip=1.0",
            "LocalTraining(momentum=0.9, weight_decay=5e-4, clip=10.0",
            DEFAULTS,
        ),
    ),
    *_in(
        "fedraa/methods/fedbuff.py",
        ("local=PLAIN_SGD,", "", DEFAULTS),
        ("size: Count = 10\n", "size: Count = 7\n", DEFAULTS),
        (
            "factor = self.server_lr / self.size",
            "factor = self.server_lr",
            ASYNC_RULES,
        ),
    ),
    *_in(
        "fedraa/methods/fadas.py",
        ("LocalTraining(momentum=0.0, weight_decay=1e-4)", "LocalTraining(momentum=0.0, weight_decay=1e-3)", DEFAULTS),
    ),
    *_in("fedraa/methods/fedasync.py", ("mixing: Share = 0.6\n", "mixing: Share = 0.9\n", DEFAULTS)),
    *_in(
        "fedraa/submodels/policies/slices.py",
        ("4: (0.1, 0.2, 0.3, 0.4)", "4: (0.25, 0.25, 0.25, 0.25)", DEFAULTS),
    ),
    *_in(
        "fedraa/client/local_training.py",
        ("momentum: Decay = 0.5", "momentum: Decay = 0.9", DEFAULTS),
        ("epochs: Count = 5", "epochs: Count = 1", DEFAULTS),
    ),
    *_in(
        "fedraa/server/optimizers.py",
        (
            'rule: str = "adam"\n    server_lr: Positive = 0.01',
            'rule: str = "adam"\n    server_lr: Positive = 1.0',
            DEFAULTS,
        ),
        ("tau: Positive = 1e-3", "tau: Positive = 1e-8", DEFAULTS),
        ("self._v = np.full(size, self.tau**2, np.float32)", "self._v = np.zeros(size, np.float32)", FULL),
        (
            "moment = np.float32(self.beta2) * v + np.float32(1 - self.beta2) * square",
            "moment = np.float32(self.beta2) * v + square",
            FULL,
        ),
        (
            "np.copyto(m, np.float32(self.beta) * m + delta[piece], where=moved[piece])",
            "np.copyto(m, np.float32(self.beta) * (m + delta[piece]), where=moved[piece])",
            FULL,
        ),
        ("np.maximum(v_max, v, out=v_max)", "v_max[:] = v", ASYNC_RULES),
    ),
    *_in(
        "fedraa/server/staleness.py",
        ("(staleness + 1) ** -self.exponent", "(staleness + 2) ** -self.exponent", RAA),
        ("start: NotNegative = 4", "start: NotNegative = 2", DEFAULTS),
    ),
    *_in("fedraa/submodels/policies/pruning.py", ("REMOVABLE = 0.3", "REMOVABLE = 0.5", DEFAULTS)),
    *_in(
        "fedraa/client/input_adversary.py",
        ("SCALE_PENALTY, SHIFT_PENALTY = 100.0, 4.0", "SCALE_PENALTY, SHIFT_PENALTY = 4.0, 100.0", DEFAULTS),
    ),
    # These errors are in the local step.
    *_in(
        "fedraa/client/local_step.py",
        (
            "w.add_(g.mul_(self.settings.sam_rho / (gradient_norm(g) + EPSILON)))",
            "w.add_(g.mul_(self.settings.sam_rho))",
            TRAINING,
        ),
        ("        w.copy_(unperturbed)\n", "", TRAINING),
        ("self._apply_mask(model.weights)\n", "pass\n", SUBMODELS),
        (
            "self.squares.addcmul_(self.model.gradient, self.model.gradient)",
            "self.squares.add_(self.model.gradient)",
            SUBMODELS,
        ),
        ("outputs = outputs * held.view(*outputs.shape[:-2], 1, -1)", "pass", SUBMODELS),
    ),
    *_in(
        "fedraa/client/local_optimizer.py",
        ("            velocity.add_(gradient)\n", "            velocity.add_(gradient).add_(gradient)\n", TRAINING),
    ),
    *_in(
        "fedraa/client/trainer.py",
        ("alpha=len(rows) / len(y))", "alpha=1.0)", GUARDS),
        ("return total.add_(local_step.model.weights, alpha=self._local.weight_decay)", "return total", FULL),
        (
            'rng = generator(self._seed, f"batches{name}", task.client, task.turn)',
            'rng = generator(self._seed, f"batches{name}", task.client, 0)',
            FULL,
        ),
        ("loss=float(total) / steps", "loss=float(total)", GUARDS),
    ),
    # These errors are in the server.
    *_in(
        "fedraa/ledger/round_ledger.py",
        ("return 1.0 if self._samples is None else float(self._samples[client])", "return 1.0", FULL),
    ),
    *_in(
        "fedraa/server/round_server.py",
        (
            "scale = self._lr_steps / self.ledger.reported",
            "scale = self._lr_steps",
            TERMS,
        ),
        (
            "self._optimizer.server_lr * weight / self.ledger.weight_sum, now)",
            "self._optimizer.server_lr * weight, now)",
            "tests/unit/replay/test_replay.py",
        ),
    ),
    *_in(
        "fedraa/aggregation/coverage_mean.py",
        (
            "return np.broadcast_to(np.float32(self._participants), self._size)",
            "return super()._take_divisor()",
            SUBMODELS,
        ),
        (
            "self._weights.add(contribution.change, contribution.weight)",
            "self._weights.add(contribution.change)",
            SUBMODELS,
        ),
    ),
    *_in(
        "fedraa/vectors/coverage_counter.py",
        ("np.add(sums[piece], self._whole, out=sums[piece])", "None", SUBMODELS),
    ),
    *_in(
        "fedraa/methods/ram_fed.py",
        ("v = old + correction", "v = correction", SUBMODELS),
        ("row[place] = update", "row[place] += update", SUBMODELS),
        ("np.subtract(update, old, ", "np.add(update, old, ", SUBMODELS),
    ),
    *_in(
        "fedraa/methods/scaffold.py",
        ("np.divide(change, clients, out=change)", "change", FULL),
        ("np.float32(update.steps * contribution.lr)", "np.float32(contribution.lr)", FULL),
    ),
    *_in(
        "fedraa/ledger/async_ledger.py",
        ("Staleness(version - dispatch.version,", "Staleness(self.step - dispatch.step,", RAA),
    ),
    *_in("fedraa/engine/run_spec.py", ("if self.scales_rate and self", "if self", QUILT)),
    *_in(
        "fedraa/submodels/traced.py",
        ("{layer_of(entry.tensor) for group in self.groups for entry in group.entries}", "set()", QUILT),
    ),
    *_in(
        "fedraa/methods/fed_quilt.py",
        ("min(1.0, self.server_gain * (model.fragments / model.at_work))", "min(1.0, self.server_gain)", QUILT),
        ("min(1.0, self.server_gain / model.at_work) / self._share", "1.0", BALANCE),
        ("gain: Positive = 1.2", "gain: Positive = 1.0", DEFAULTS),
        ("if update.steps > self.short_steps", "if update.steps >= self.short_steps", MUON_DELTA),
        ("self._share * update.steps / (self", "update.steps / (self", MUON_DELTA),
        ("/ (self._layers * age)", "/ age", MUON_DELTA),
        ("self._layers * age", "self._layers", MUON_DELTA),
        ("correction = 1 - (1 - 1 / self._first_memory) ** self._arrivals[fragment]", "correction = 1.0", MUON_DELTA),
        ("max(self._first_memory, SHORTEST * age)", "self._first_memory", MUON_DELTA),
        ("min(LONGEST, max(", "max(1, max(", MUON_DELTA),
        ("max(SHORTEST, TASKS_PER_LABEL /", "min(SHORTEST, TASKS_PER_LABEL /", MUON_DELTA),
        ("max(model.label_overlap, TASKS_PER_LABEL / LONGEST)", "max(model.label_overlap, 0.01)", MUON_DELTA),
        ("np.where(matrices.mask, update.sent, update.new)", "update.new", MUON_DELTA),
    ),
    *_in(
        "fedraa/server/muon.py",
        ("scale = 1.0 if is_added(shape) else sqrt", "scale = sqrt", "tests/unit/methods/test_ringmaster_lmo.py"),
    ),
    *_in(
        "fedraa/server/polyak.py",
        ("self._mean.follow(1 / (self._share * before + 1))", "self._mean.follow(1 / (before + 1))", BALANCE),
    ),
    *_in(
        "fedraa/server/participation_correction.py",
        ("(samples / samples.sum() / shares) ** power", "(shares / (samples / samples.sum())) ** power", BALANCE),
        ("return np.asarray(factors / (shares @ factors))", "return np.asarray(factors)", BALANCE),
    ),
    Mutant(
        "fedraa/server/round_server.py",
        "self._lr_steps += lr * update.steps",
        "self._lr_steps += lr * update.steps * self.ledger.reported / self.ledger.clients",
        (GUARDS,),
    ),
    *_in(
        "schedulers/scheduler_runner.py",
        ("counts[:] = before + (counts > before)", "counts[:] = counts", GUARDS),
    ),
    *_in(
        "fedraa/devices/costs.py",
        ("return cost.flops / (cost.flops + self._stem.server_flops)", "return cost.params / self._full.params", COSTS),
        ("return flops / self._server\n", "return 0.0\n", COSTS),
    ),
    # These errors are in the policies.
    *_in(
        "fedraa/submodels/policies/regions.py",
        (
            "if context.client not in draw_large_clients(*when):",
            "if not draw_large_clients(*when):",
            REGIONS,
        ),
        (
            "return frozenset(order[: run.clients // 2].tolist())",
            "return frozenset(range(run.clients // 2))",
            REGIONS,
        ),
        ("if context.round == 0:", "if context.round < 0:", REGIONS),
    ),
    *_in(
        "fedraa/submodels/masks.py",
        ("region[mine] = place * parts // places", "region[mine] = place % parts", REGIONS),
        ("if group.size < parts:", "if group.size:", REGIONS),
        ("shared = np.ones(traced.size, dtype=bool)", "shared = np.zeros(traced.size, dtype=bool)", POLICIES),
    ),
    *_in(
        "fedraa/submodels/policies/masked.py",
        ("count = 1 if context.client < run.clients // 2 else 2", "count = 2", POLICIES),
        ("(part < 0) | (part >= self.parts - kept)", "(part < 0) | (part < kept)", POLICIES),
    ),
    *_in(
        "fedraa/submodels/policies/slices.py",
        ("start = context.round * self.stride", "start = 0", POLICIES),
    ),
    *_in(
        "fedraa/submodels/policies/shuffled.py",
        ("return round_up(1 / ratio)", "return int(1 / ratio)", POLICIES),
        ('rng = generator(seed, "cycle", count, cycle)', 'rng = generator(seed, "cycle", count, 0)', POLICIES),
    ),
    *_in(
        "fedraa/submodels/indices.py",
        (
            "return round_up(ratio * size)",
            "return math.floor(ratio * size) or 1",
            "tests/unit/submodels/test_submodels_indices.py",
        ),
        ("rows *= factors", "rows /= factors", "tests/unit/submodels/test_submodels_indices.py"),
    ),
    *_in("fedraa/engine/build.py", ("keep_norms=method.local.full_rate", "keep_norms=True", QUILT)),
    # These errors are in costs and schedulers.
    *_in(
        "fedraa/devices/fleet.py",
        ("+ load.up / self.uplink[clients]", "+ load.up / self.downlink[clients]", FLEET),
        ("REFERENCE_EPOCHS = 5", "REFERENCE_EPOCHS = 1", COSTS),
    ),
    *_in(
        "fedraa/client/local_training.py",
        ("return 1 + bool(self.sam_rho) + self.adversary", "return 1 + self.adversary", COSTS),
        ("return self.full_gradient + self.algorithm.epochs", "return self.algorithm.epochs", COSTS),
    ),
    *_in(
        "fedraa/submodels/assignment.py",
        ("up = sent_back(trained) + bitmap", "up = sent_back(trained)", COSTS),
    ),
    *_in(
        "fedraa/client/auto_steps.py",
        ("self.kappa * move / step", "self.kappa * step / move", AUTO),
        ("LONGEST * overlap / (1 - overlap)", "LONGEST * overlap", AUTO),
        ("DEFAULT_MINIMUM = 15", "DEFAULT_MINIMUM = 20", AUTO),
        ("round(DEFAULT_MINIMUM * overlap)), longest)", "round(DEFAULT_MINIMUM / overlap)), longest)", AUTO),
        ("np.maximum(SHORTEST, whole)", "whole", AUTO),
        ("size < FEW_SAMPLES", "size <= FEW_SAMPLES", AUTO),
    ),
    *_in(
        "schedulers/greedy.py",
        ("tied = candidates[updates == updates.min()]", "tied = candidates[updates == updates.max()]", SCHEDULERS),
    ),
    *_in(
        "schedulers/bound.py",
        (
            "ends = -(-np.arange(1, clients + 1) * fragments // clients)",
            "ends = np.maximum(1, np.arange(1, clients + 1) * fragments // clients)",
            SCHEDULERS,
        ),
    ),
    # These errors are in the settings of comparisons and in tuning.
    *_in(
        "fedraa/settings/terms.py",
        ('"momentum": 0.0,', '"momentum": 0.5,', ON_TERMS),
        ("return drawn.count", "return None", ON_TERMS),
    ),
    *_in("fedraa/client/lr_schedule.py", ("COSINE_END = 0.99", "COSINE_END = 1.0", ON_TERMS)),
    *_in("fedraa/tuning/space.py", ("* (high - low) / 2", "* (high - low)", SPACE)),
    *_in("fedraa/tuning/suggest.py", ('trial.value if better == "max" else -trial.value', "trial.value", TUNER)),
    *_in(
        "fedraa/data/validation_split.py",
        ("kept.append(np.sort(order[count:]))", "kept.append(np.sort(order))", HELD_BACK),
    ),
    # These errors are in the handling of lost, repeated and late calls, deaths and freezes.
    *_in(
        "actors/pool/executor.py",
        ("        if not handle.calls:\n", "        if False:\n", SIMULATED_EXECUTOR),
    ),
    *_in(
        "fedraa/engine/task_pool.py",
        ("            self._queues.again(call.tasks)\n", "", SIMULATED),
        (
            "            if call.evaluation is not None:\n                self._evaluations.append(call.evaluation)",
            "",
            SIMULATED,
        ),
    ),
    *_in(
        "actors/pool/liveness.py",
        ("if self._silent > bound and not self._used_cpu(bound / 2):", "if False:", SIMULATED),
        ("if self._silent >= self._heartbeat.every:", "if False:", SIMULATED),
    ),
    *_in(
        "actors/server/relay.py",
        ("            if number > self._number:", "            if number:", SIMULATED),
        ("self._answered = self._taken", "self._answered = self._put", SIMULATED),
        ("(not self._queue and self._answered >= answered)", "not self._queue", SIMULATED),
    ),
    *_in("actors/cluster/follower.py", ("        self._number += 1\n", "        self._number = 1\n", SIMULATED)),
    *_in(
        "actors/server/parameter_server.py",
        ("if self._outcome is None:\n", "if True:\n", SIMULATED),
        ("if self._filled is None:", "if True:", SIMULATED),
    ),
    *_in(
        "actors/cluster/engine.py",
        (
            "                resume = True\n                wrong =",
            "                resume = False\n                wrong =",
            SIMULATED,
        ),
    ),
    *_in(
        "actors/cluster/placement.py",
        ('if node["Alive"]]', "]", SIMULATED),
    ),
    # These errors let processes overwrite arrays that are still in use, or mix up arrays.
    *_in(
        "fedraa/engine/shared_memory.py",
        (
            "weakref.finalize(content, self._free.append, place).atexit = False",
            "self._free.append(place)",
            SHARED_MEMORY,
        ),
        ("start += _round_up(array.nbytes, ALIGNMENT)", "start += 0", SHARED_MEMORY),
        ("self._end = start + size", "self._end = start", SHARED_MEMORY),
    ),
]
