"""The deployment examples: the cluster's YAML, the Slurm script and the dashboard."""

import json
import re
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml
from ray import autoscaler

from actors.cluster.metrics import NAMES

ACTORS = Path(__file__).parents[3] / "actors"


def test_the_launcher_takes_the_cluster() -> None:
    config = yaml.safe_load((ACTORS / "examples" / "cluster.yaml").read_text())
    schema = json.loads((Path(autoscaler.__file__).parent / "ray-schema.json").read_text())
    jsonschema.validate(config, schema)
    assert config["head_node_type"] in config["available_node_types"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(config | {"max_worker": 8}, schema)


def test_bash_takes_the_slurm_script() -> None:
    subprocess.run(["bash", "-n", str(ACTORS / "examples" / "fedraa.slurm")], check=True)


def test_the_dashboard_asks_for_every_metric_that_there_is_and_no_other() -> None:
    panels = json.loads((ACTORS / "grafana.json").read_text())["panels"]
    asked = {
        re.sub("_(total|bucket)$", "", name)
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"ray_(fedraa_\w+)", target["expr"])
    }
    assert asked == set(NAMES.values())
