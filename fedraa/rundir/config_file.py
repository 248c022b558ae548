"""The format of a run directory, which has a version: what this version of fedraa writes, and how it reads older ones.

Format 1 is that of directories without the key `format`. From 3 on checkpoints have digests of the log, and a run that
has ended those of its files. From 4 on the local steps `auto` end with a pass, where they were 20 before. Checkpoints
of 5 hold the decisions of the server apart from its buffers; those of earlier formats cannot be resumed. Reading
changes nothing on the disk.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedraa.errors import InputError
from fedraa.reading import content

FORMAT = 5
SEALED = 3  # the first format in which a run that has ended has its digests
PASSES = 4  # the first format in which `auto` has a pass over the client's data as its most, and
AUTO = "auto:20"  # what it was before
PARTS = ("experiment", "method", "resolved", "versions")  # of config.json; each is an object, and always there
KEYS = {*PARTS, "format", "given", "commit", "command"}

# What parts were before these fields of theirs: runs of today differ from them, and do not go on with them.
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
    """A config.json as this version writes it, whatever format it has; `format` stays that of the file.

    Raises ValueError, one sentence, for what is no configuration of a run or is of a newer format.
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
    """ValueError, one sentence, unless `format` is a number that this version reads."""
    if type(format) is not int or format < 1:
        raise InputError("run", f"{path} has a wrong format", got=format, expected=f"a number from 1 to {FORMAT}")
    if format > FORMAT:
        raise InputError(
            "run",
            f"{path} has the format {format}, and this fedraa reads formats up to {FORMAT}",
            hint="use the fedraa that wrote it",
        )


def upgrade_config(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration with the names of today; one that has them already is returned as it is."""
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
            # It was the default once. Today a run is refused with it.
            experiment = experiment | {field: None}
            config = config | {"experiment": experiment}
    config = _without_unused_groups(config)
    update = config["method"].get("update")
    if not isinstance(update, Mapping):
        return config
    return config | {"method": config["method"] | {"update": dict(map(_upgraded, update.items()))}}


def _without_unused_groups(config: dict[str, Any]) -> dict[str, Any]:
    """Leave out the width groups of a model that the method trains whole; earlier versions traced it all the same."""
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
