"""The resolved description of a run for config.json, and the digest of its model."""

import hashlib
import platform
import subprocess
import sys
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedraa.data import make_transforms
from fedraa.devices.fleet import COLUMNS
from fedraa.devices.link_traces import describe_links
from fedraa.engine.evaluation_queue import MAX_PENDING_EVALS
from fedraa.engine.run_spec import RunSpec
from fedraa.messages import Vector
from fedraa.rundir.config_file import FORMAT
from fedraa.rundir.frozen_base import base_sha256
from fedraa.rundir.inputs import describe_inputs
from fedraa.rundir.packed_columns import pack_column
from fedraa.submodels.flat import frozen_parameters
from fedraa.submodels.indices import count_owners

PACKAGES = ("fedraa", "numpy", "ray", "torch")
# The key in config.json for the maximum number of evaluations in progress.
PENDING_EVALS_KEY = "max_pending_evals"
# The key in config.json for the digest of the first weights of a model that was given as an object.
WEIGHTS_KEY = "weights"


def params_digest(spec: RunSpec, params: Vector) -> str:
    """Return the digest of the parameters' float32 bytes, in the order of the parameters' names."""
    places = spec.traced.places
    digest = hashlib.sha256()
    for name in sorted(places):
        digest.update(params[places[name]].tobytes())
    return digest.hexdigest()


def describe_run(spec: RunSpec, awaits_evaluations: bool = False) -> dict[str, object]:
    """Return the resolved configuration of a run, with everything that a check of its log needs.

    `awaits_evaluations` is True if a callback may end the run after an evaluation.
    """
    fleet = spec.fleet
    traced = spec.traced
    pending_evals = MAX_PENDING_EVALS
    if awaits_evaluations or spec.limits.goal is not None:
        pending_evals = 0
    return {
        "format": FORMAT,
        "experiment": spec.experiment.model_dump(mode="json"),
        "given": list(spec.object_fields),
        "method": spec.method.described(),
        "resolved": {
            "samples": pack_column(spec.data.sizes),
            **{column: pack_column(getattr(fleet, column)) for column in COLUMNS},
            "watts": {column: pack_column(values) for column, values in fleet.watts.items()},
            "links": describe_links(fleet.links),
            "tensors": list(traced.names),
            "parameters": traced.size,
            WEIGHTS_KEY: params_digest(spec, spec.params) if "model" in spec.object_fields else None,
            "inputs": _describe_inputs(spec),
            "base": described_base(spec),
            "shared": int((count_owners(traced, spec.index_sets) == len(spec.index_sets)).sum()),
            "groups": {group.name: group.size for group in traced.groups},
            "fragments": [list(part.widths) for part in spec.submodels],
            "shapes": [{"widths": list(w), **asdict(cost)} for w, cost in spec.shapes.items()],
            "label_overlap": spec.label_overlap,
            "stem": None if spec.stem is None else asdict(spec.stem),
            "eval_every": spec.eval_every,
            "limits": spec.limits.described(),
            PENDING_EVALS_KEY: pending_evals,
            "metric_spec": spec.metric_spec.described(),
            "metrics": list(spec.metric_spec.own),
            "availability": None if spec.timing.availability is None else spec.timing.availability.described(),
            **_describe_attackers(spec),
            **_describe_privacy(spec),
        },
        "versions": {"python": platform.python_version(), **{name: installed_version(name) for name in PACKAGES}},
        "commit": source_commit(),
        "command": sys.argv,
    }


def _describe_attackers(spec: RunSpec) -> dict[str, list[int]]:
    """Return, under the key `attackers`, the numbers of the attacking clients; an empty dict without an attack."""
    if spec.attack is None:
        return {}
    return {"attackers": sorted(spec.attack.attackers)}


def _describe_privacy(spec: RunSpec) -> dict[str, dict[str, Any]]:
    """Return, under the key `privacy`, the values that determine the privacy loss; an empty dict without privacy."""
    if spec.privacy_terms is None:
        return {}
    return {"privacy": spec.privacy_terms.described()}


def _describe_inputs(spec: RunSpec) -> Any:
    data = spec.data
    transforms = make_transforms(spec.experiment.transforms, seed=spec.experiment.seed)
    return describe_inputs(data.dataset.classes, spec.example, data.scaling, transforms, data.fixed)


def described_base(spec: RunSpec) -> dict[str, object] | None:
    """Return a description of the model's frozen parameters and buffers; None without any.

    Updates and checkpoints do not contain these values. Buffers that training changes are not described.
    """
    module = spec.traced.module
    changed = spec.state.changes
    parameters = frozen_parameters(module)
    if not parameters:
        return None
    return {
        "parameters": sum(parameter.numel() for parameter in parameters),
        "sha256": base_sha256(module.state_dict(), spec.traced.names, changed),
        "changed": list(changed),
    }


# The functions below are cached, because a running process keeps the versions that it has imported.
@cache
def installed_version(package: str) -> str | None:
    """Return the version of an installed package, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def source_commit() -> str | None:
    """Return the git commit of this source tree, or None outside of a git checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD", "--show-prefix"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    commit, folder = output.splitlines()
    # An installed package can be in a folder of another repository.
    return commit if folder == "fedraa/engine/" else None
