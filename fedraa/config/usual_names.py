"""Names of options and commands in other libraries, for which errors suggest fedraa's names."""

from collections.abc import Collection

from fedraa.errors import suggest_closest

USUAL_NAMES: dict[str, tuple[str, ...]] = {
    "algorithm": ("method",),
    "algo": ("method",),
    "alpha": ("dirichlet", "mixing"),
    "amp": ("bf16",),
    "arch": ("model",),
    "b": ("batch_size",),
    "backbone": ("model",),
    "backend": ("engine",),
    "batch": ("batch_size",),
    "beta": ("momentum", "dirichlet"),
    "bs": ("batch_size",),
    "client_fraction": ("participation",),
    "client_lr": ("lr",),
    "client_optimizer": ("local_optimizer",),
    "client_resources": ("resources",),
    "clients_per_round": ("participation",),
    "clip_norm": ("clip",),
    "comm_round": ("rounds",),
    "comm_rounds": ("rounds",),
    "communication_rounds": ("rounds",),
    "compression": ("compress",),
    "cuda": ("device",),
    "data": ("dataset", "data_dir"),
    "data_path": ("data_dir",),
    "data_root": ("data_dir",),
    "delay": ("delay_bound",),
    "distribution": ("partition",),
    "dp": ("clip",),
    "epoch": ("local_epochs", "rounds"),
    "epochs": ("local_epochs", "rounds"),
    "eta": ("lr", "server_lr"),
    "eval_interval": ("eval_every",),
    "evaluate_every": ("eval_every",),
    "fp16": ("bf16",),
    "frac": ("participation",),
    "fraction": ("participation",),
    "fraction_fit": ("participation",),
    "fraction_train": ("participation",),
    "global_epochs": ("rounds", "updates"),
    "global_lr": ("server_lr",),
    "global_rounds": ("rounds",),
    "gpu": ("device",),
    "gpus": ("device", "resources"),
    "grad_clip": ("clip",),
    "gradient_clip": ("clip",),
    "hidden_size": ("hidden",),
    "hidden_sizes": ("hidden",),
    "iid": ("partition",),
    "iterations": ("updates", "rounds"),
    "k": ("clients",),
    "l2": ("weight_decay",),
    "learning_rate": ("lr",),
    "local_batch_size": ("batch_size",),
    "local_bs": ("batch_size",),
    "local_ep": ("local_epochs",),
    "local_iterations": ("local_steps",),
    "local_iters": ("local_steps",),
    "local_learning_rate": ("lr",),
    "local_lr": ("lr",),
    "log_dir": ("out",),
    "loss": ("objective",),
    "lr_decay": ("lr_schedule",),
    "lr_scheduler": ("lr_schedule",),
    "m": ("method",),
    "max_rounds": ("rounds",),
    "max_steps": ("updates", "rounds"),
    "min_available_clients": ("clients",),
    "min_fit_clients": ("participation",),
    "mixed_precision": ("bf16",),
    "mu": ("prox_mu",),
    "n_classes_per_client": ("partition",),
    "n_clients": ("clients",),
    "n_epochs": ("local_epochs", "rounds"),
    "n_rounds": ("rounds",),
    "n_workers": ("workers",),
    "name": ("out",),
    "net": ("model",),
    "network": ("model",),
    "nodes": ("clients",),
    "non_iid": ("partition", "dirichlet"),
    "noniid": ("partition", "dirichlet"),
    "num_clients": ("clients",),
    "num_epochs": ("local_epochs", "rounds"),
    "num_partitions": ("clients",),
    "num_rounds": ("rounds",),
    "num_server_rounds": ("rounds",),
    "num_supernodes": ("clients",),
    "num_threads": ("threads_per_worker",),
    "num_users": ("clients",),
    "num_workers": ("workers",),
    "opt": ("local_optimizer", "server_optimizer"),
    "optim": ("local_optimizer", "server_optimizer"),
    "optimiser": ("local_optimizer", "server_optimizer"),
    "optimizer": ("local_optimizer", "server_optimizer"),
    "outdir": ("out",),
    "output": ("out",),
    "output_dir": ("out",),
    "path": ("out", "data_dir"),
    "precision": ("bf16",),
    "prox": ("prox_mu",),
    "proximal": ("prox_mu",),
    "q": ("quiet",),
    "random_seed": ("seed",),
    "rho": ("prox_mu",),
    "run_name": ("out",),
    "sample_fraction": ("participation",),
    "save_dir": ("out",),
    "schedule": ("lr_schedule", "scheduler"),
    "silent": ("quiet",),
    "split_type": ("partition",),
    "strategy": ("method",),
    "task": ("objective",),
    "test_every": ("eval_every",),
    "threads": ("threads_per_worker",),
    "timeout": ("time",),
    "train_batch_size": ("batch_size",),
    "wd": ("weight_decay",),
}
"""Maps a name in other libraries to the fields of an experiment that errors suggest, in this order."""

USUAL_PATHS: dict[str, str] = {
    "activation_scale": "local.scale_activations",
    "calibrate": "local.logit_calibration",
    "delay_limit": "update.delay_limit",
    "density": "submodel.density",
    "download_compressor": "schedule.download_compressor",
    "full_rate": "local.full_rate",
    "grad_mix": "local.grad_mix",
    "logit_adjustment": "local.logit_calibration",
    "logit_calibration": "local.logit_calibration",
    "mask_level": "submodel.level",
    "max_delay": "update.delay_limit",
    "max_staleness": "update.delay_limit",
    "participation_correction": "update.participation_correction",
    "redraw": "submodel.capacities.redraw",
    "reprune_every": "submodel.reprune_every",
    "sam": "local.sam_rho",
    "sam_rho": "local.sam_rho",
    "scale_activations": "local.scale_activations",
    "server_compute": "submodel.server_compute",
    "server_gain": "update.server_gain",
    "shuffled": "submodel.shuffled",
    "sparsity": "submodel.density",
    "split": "submodel.layers",
    "stride": "submodel.stride",
    "uncovered_every": "submodel.uncovered_every",
}
"""Maps a name in other libraries to the path of the method's value that errors suggest for `override`."""

USUAL_COMMANDS: dict[str, tuple[str, ...]] = {
    "benchmark": ("compare",),
    "dashboard": ("board",),
    "evaluate": ("report",),
    "fit": ("run",),
    "init": ("new",),
    "list": ("methods",),
    "plot": ("report",),
    "simulate": ("run",),
    "start": ("run",),
    "sweep": ("tune", "compare"),
    "train": ("run",),
    "ui": ("board",),
}
"""Maps the name of a command in other libraries to the commands of fedraa that errors suggest."""

CALLS = ("check", "compare", "replay", "report", "resume", "tune")
"""Functions of fedraa whose names users may mistake for fields of an experiment."""


def suggest_name(word: str, known: Collection[str]) -> str:
    """Return the question "did you mean NAME?". NAME is similar to `word`, or has the same meaning.

    The result is empty without such a name.
    """
    names = {name.lstrip("-").replace("-", "_"): name for name in known}
    plain = word.lstrip("-").replace("-", "_").lower()
    usual = (*USUAL_NAMES.get(plain, ()), *USUAL_COMMANDS.get(plain, ()))
    meanings = [names[name] for name in usual if name in names]
    if plain in USUAL_PATHS and "override" in names:
        path = USUAL_PATHS[plain]
        flag = names["override"]
        meanings.append(f"{flag} {path}=VALUE" if flag.startswith("--") else f'{flag}={{"{path}": ...}}')
    if meanings:
        return f"did you mean {' or '.join(meanings)}?"
    return suggest_closest(plain, known)
