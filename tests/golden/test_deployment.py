"""The files for containers and clusters: they agree with the package, with each other, and with published schemas."""

import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray import autoscaler

from actors.cluster.metrics import NAMES
from fedraa.cli.main import _parse_arguments

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))


def kuberay() -> dict[str, Any]:
    """Return the documents of kuberay.yaml by their kind."""
    return {document["kind"]: document for document in yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text())}


def pod_specs() -> list[dict[str, Any]]:
    """Return the pods of the cluster, the head first."""
    spec = kuberay()["RayCluster"]["spec"]
    return [group["template"]["spec"] for group in [spec["headGroupSpec"], *spec["workerGroupSpecs"]]]


def test_launcher_config_matches_the_schema_of_ray() -> None:
    config = yaml.safe_load((DEPLOY / "ray-cluster.yaml").read_text())
    schema = json.loads((Path(autoscaler.__file__).parent / "ray-schema.json").read_text())
    jsonschema.validate(config, schema)
    assert config["head_node_type"] in config["available_node_types"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(config | {"max_worker": 8}, schema)


def test_launcher_config_installs_the_dependencies() -> None:
    config = yaml.safe_load((DEPLOY / "ray-cluster.yaml").read_text())
    (command,) = config["setup_commands"]
    installed = shlex.split(command)[4:]
    assert installed == [re.split("[<>=]", requirement)[0] for requirement in PROJECT["dependencies"]]
    assert config["docker"]["image"].startswith(f"rayproject/ray:{PINS['ray']}-py311")


def test_slurm_script_is_valid_bash() -> None:
    subprocess.run(["bash", "-n", str(DEPLOY / "slurm.sh")], check=True)


def test_citation_has_the_version_of_the_project() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == PROJECT["version"]


@pytest.mark.parametrize("name", ["ci.yml", "release.yml"])
def test_workflows_name_actions_by_their_commit(name: str) -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())
    actions = [step["uses"] for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]
    assert actions
    assert [action for action in actions if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action)] == []


def test_release_runs_only_for_tags_and_only_the_last_job_can_publish() -> None:
    # PyYAML reads the key `on` as True.
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert workflow[True] == {"push": {"tags": ["v*"]}}
    assert workflow["permissions"] == {"contents": "read"}
    jobs = workflow["jobs"]
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert (jobs["publish"]["needs"], jobs["test"]["needs"]) == ("test", "build")


def test_guides_build_the_image_that_kubernetes_runs() -> None:
    (image,) = {container["image"] for pod in pod_specs() for container in pod["containers"]}
    for text in ("Dockerfile", "docs/guides/containers.md"):
        assert f"docker build --tag {image} ." in (ROOT / text).read_text()


def test_kubernetes_runs_without_root_and_with_the_pinned_ray() -> None:
    assert kuberay()["RayCluster"]["spec"]["rayVersion"] == PINS["ray"]
    for pod in pod_specs():
        assert pod["securityContext"]["runAsNonRoot"] is True


def test_kubernetes_job_writes_to_the_volume_of_its_cluster() -> None:
    documents = kuberay()
    job = documents["RayJob"]["spec"]
    assert job["clusterSelector"] == {"ray.io/cluster": documents["RayCluster"]["metadata"]["name"]}
    head = pod_specs()[0]
    (volume,) = head["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == documents["PersistentVolumeClaim"]["metadata"]["name"]
    (mount,) = head["containers"][0]["volumeMounts"]
    assert mount["name"] == volume["name"]
    program, *arguments = shlex.split(job["entrypoint"])
    assert program == "fedraa"
    assert _parse_arguments(arguments)
    assert arguments[arguments.index("--out") + 1].startswith(mount["mountPath"] + "/")


def test_image_has_the_files_that_a_wheel_is_built_from() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    copied = {line[1:] for line in lines if line.startswith("!")}
    assert copied == {"LICENSE", "README.md", "actors", "constraints.txt", "fedraa", "pyproject.toml", "schedulers"}
    assert "*" in lines


def test_dashboard_shows_exactly_the_metrics_of_a_run() -> None:
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    shown = {
        re.sub("_(total|bucket)$", "", name)
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"ray_(fedraa_\w+)", target["expr"])
    }
    assert shown == set(NAMES.values())
