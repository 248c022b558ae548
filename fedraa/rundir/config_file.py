"""The versioned format of a run directory: the current one, and the conversion of configurations of older ones.

Format 1 is that of directories without the key `format`. Since format 3 checkpoints have digests of the log, and
finished runs have digests of their files. Since format 4 the local steps `auto` end with a pass over the data. Before,
there were at most 20. Since format 5 checkpoints hold the decisions of the server apart from its buffers. Runs of
earlier formats cannot be resumed. Reading changes nothing on the disk.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedraa.errors import InputError
from fedraa.reading import content

FORMAT = 5
# The first format in which a finished run has digests.
SEALED = 3
# The first format in which `auto` takes at most one pass over the client's data.
PASSES = 4
# The meaning of `auto` before.
AUTO = "auto:20"
# The keys of config.json that must be there; each is an object.
PARTS = ("experiment", "method", "resolved", "versions")
KEYS = {*PARTS, "format", "given", "commit", "command"}

# The values that components had before these fields existed. Runs with other values cannot be resumed.
_BEFORE: dict[str, dict[str, Any]] = {
    "DeltaMix": {"spread": False},
    "AdaptivePruning": {"initial": 0},
    "Arbitrary": {"regions": "the same units in every layer"},
    "DisjointGroups": {"scaled": False},
    "Solver": {"calibrate": 0.0},
}
_RENAMED = {"aggregate": "aggregator", "optimiser": "optimizer"}
_AUXILIARY = {
    "none": "NoAuxiliary",
    "control": "ControlVariates",
    "momentum": "GlobalMomentum",
    "frozen-momentum": "FrozenMomentum",
    "adversary": "Adversaries",
}


def read_config(path: Path) -> dict[str, Any]:
    """Return a config.json in the current form, whatever its format. `format` stays that of the file.

    Raises:
        ValueError: The file is no configuration of a run, or is of a newer format.
    """
    try:
        config = json.loads(content(path).decode())
    except OSError as error:
        raise InputError("run", f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InputError("run", f"{path} is not JSON: {error}") from None
    if isinstance(config, dict):
        check_format(path, config.setdefault("format", 1))
    if not isinstance(config, dict) or not all(isinstance(config.get(key), dict) for key in PARTS):
        raise InputError("run", f"{path} is not a run's configuration; it lacks one of {', '.join(PARTS)}")
    if "method" not in config["experiment"]:
        raise InputError("run", f"{path} is not a run's configuration; it lacks experiment.method")
    if unknown := sorted(config.keys() - KEYS):
        raise InputError(
            "run",
            f"{path} has the key {unknown[0]!r}, which format {FORMAT} does not have",
            hint="use the newer fedraa that wrote it",
        )
    return upgrade_config(config)


def check_format(path: Path, format: object) -> None:
    """Raise InputError unless `format` is a number that this version reads."""
    if type(format) is not int or format < 1:
        raise InputError("run", f"{path} has a wrong format", got=format, expected=f"a number from 1 to {FORMAT}")
    if format > FORMAT:
        raise InputError(
            "run",
            f"{path} has the format {format}, and this fedraa reads formats up to {FORMAT}",
            hint="use the fedraa that wrote it",
        )


def upgrade_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with the current names."""
    for choice in ("submodel", "local", "update"):
        part = config["method"].get(choice)
        if isinstance(part, Mapping) and (before := _BEFORE.get(str(part.get("kind")))):
            config = config | {"method": config["method"] | {choice: before | dict(part)}}
    local = config["method"].get("local")
    if config.get("format", FORMAT) < PASSES and isinstance(local, Mapping) and local.get("steps") == "auto":
        config = config | {"method": config["method"] | {"local": dict(local) | {"steps": AUTO}}}
    experiment = config.get("experiment", {})
    for field, partition in (("dirichlet", "dirichlet"), ("labels_per_client", "labels")):
        if experiment.get("partition") != partition and experiment.get(field) is not None:
            # An earlier version had a default here. The current one refuses the field.
            experiment = experiment | {field: None}
            config = config | {"experiment": experiment}
    config = _without_unused_groups(config)
    update = config["method"].get("update")
    if not isinstance(update, Mapping):
        return config
    return config | {"method": config["method"] | {"update": dict(map(_upgraded, update.items()))}}


def _without_unused_groups(config: dict[str, Any]) -> dict[str, Any]:
    """Remove the width groups of a model that the method trains whole. Earlier versions traced them anyway."""
    resolved, method = config.get("resolved", {}), config["method"]
    submodel, update = method.get("submodel"), method.get("update")
    whole = isinstance(submodel, Mapping) and submodel.get("kind") in ("Full", "LayerCut")
    if not whole or "inputs" in resolved or (isinstance(update, Mapping) and update.get("owned_head")):
        return config
    shapes = [shape | {"widths": []} for shape in resolved.get("shapes", [])]
    unused: dict[str, Any] = {"groups": {}, "fragments": [[] for _ in resolved.get("fragments", [])], "shapes": shapes}
    return config | {"resolved": resolved | {name: unused[name] for name in unused if name in resolved}}


def _upgraded(item: tuple[str, Any]) -> tuple[str, Any]:
    name, value = item
    if name == "carry" and isinstance(value, Mapping):
        kind = value.get("kind")
        return "auxiliary", {"kind": _AUXILIARY.get(str(kind), kind)}
    return _RENAMED.get(name, name), value
