"""The commands for the runs of a cluster: answers of servers that may have ended, and refusals."""

import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.dashboard.modules import dashboard_sdk
from ray.dashboard.modules.job import sdk
from ray.dashboard.modules.job.common import JobStatus
from ray.exceptions import GetTimeoutError, NodeDiedError, RayActorError, RayTaskError
from refusals import refuses

from actors.cluster import operations, placement, submit
from fedraa.errors import InputError, RunFailed


class Server:
    """A server actor that fails after it has given some answers."""

    def __init__(self, answers: int, failure: type[Exception] = RayActorError) -> None:
        self._answers = answers
        self._failure = failure
        self.look = SimpleNamespace(remote=lambda: self._answer)
        self.stop = SimpleNamespace(remote=lambda: self._answer)

    def _answer(self) -> tuple[None, int]:
        if not self._answers:
            raise self._failure
        self._answers -= 1
        return None, 2


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Server]:
    """Return the servers of a simulated cluster by name. A test may add servers."""
    servers: dict[str, Server] = {}

    def get(answer: Callable[[], Any], timeout: float | None = None) -> Any:
        return answer()

    monkeypatch.setattr(operations, "join_cluster", lambda address: None)
    monkeypatch.setattr(operations.ray, "shutdown", lambda: None)
    monkeypatch.setattr(operations.ray, "get", get)
    monkeypatch.setattr(operations.ray, "get_actor", lambda name, namespace: servers[name])
    monkeypatch.setattr(
        operations.ray.util,
        "list_named_actors",
        lambda all_namespaces: [{"namespace": operations.NAMESPACE, "name": name} for name in servers],
    )
    return servers


def test_a_run_that_ends_after_its_answer_is_listed(servers: dict[str, Server]) -> None:
    servers |= {"host:/runs/a#1": Server(answers=1), "host:/runs/b#2": Server(answers=0)}
    assert operations.list_runs("auto") == [("host:/runs/a", None, 2)]


def test_a_server_that_does_not_answer_is_listed_and_can_be_stopped(servers: dict[str, Server]) -> None:
    servers["host:/runs/a#1"] = Server(answers=0, failure=GetTimeoutError)
    assert operations.list_runs("auto") == [("host:/runs/a", None, None)]
    with pytest.raises(RunFailed, match="did not answer"):
        operations.stop_run("/runs/a", "auto")


def test_stop_of_a_run_that_ends_before_the_request_is_refused(servers: dict[str, Server]) -> None:
    servers["host:/runs/a#1"] = Server(answers=1)
    with refuses("run", "it has ended", got="/runs/a"):
        operations.stop_run("/runs/a", "auto")


def test_stop_on_a_cluster_without_runs_is_refused(servers: dict[str, Server]) -> None:
    with refuses("run", "nothing to stop"):
        operations.stop_run("runs/first", "auto")


def test_fetch_from_an_unknown_node_names_its_option(
    servers: dict[str, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "living_nodes", list)
    with refuses("node", got="mars"):
        operations.fetch_run(tmp_path, "mars", "auto", tmp_path / "out")


@pytest.mark.parametrize(
    ("failure", "error", "text"),
    [
        (RayTaskError("read", "", PermissionError(13, "Permission denied")), InputError, "Permission denied"),
        (NodeDiedError("the node died"), RunFailed, "same command"),
    ],
)
def test_fetch_that_fails_on_the_node_names_the_reason(
    failure: Exception, error: type[Exception], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(ref: object) -> None:
        raise failure

    task = SimpleNamespace(options=lambda **options: SimpleNamespace(remote=lambda run: None))
    monkeypatch.setattr(operations, "join_cluster", lambda address: None)
    # The first shutdown of a process imports modules that use `ray.remote`.
    monkeypatch.setattr(operations.ray, "shutdown", lambda: None)
    monkeypatch.setattr(operations, "find_node", lambda wanted, option: {"NodeID": "0" * 56})
    monkeypatch.setattr(operations.ray, "remote", lambda function: task)
    monkeypatch.setattr(operations.ray, "get", fail)
    with pytest.raises(error, match=text):
        operations.fetch_run(Path("/runs/a"), None, "auto", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_fetch_to_a_broken_link_is_refused_before_it_joins_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "nowhere")
    with refuses("out", str(tmp_path / "out")):
        operations.fetch_run(Path("/runs/a"), None, "not joined", tmp_path / "out")


class JobClient:
    """A client of a dashboard that shows one line of output. The connection may then be lost."""

    def __init__(self, status: JobStatus | Exception) -> None:
        self._status = status

    def submit_job(self, entrypoint: str, runtime_env: object) -> str:
        return "job-1"

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        yield "first line\n"
        if isinstance(self._status, Exception):
            raise self._status

    def get_job_status(self, job: str) -> JobStatus | Exception:
        return self._status


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (JobStatus.FAILED, "ended as failed"),
        (JobStatus.RUNNING, "is running"),
        (RuntimeError("closed"), "lost: closed"),
    ],
)
def test_submit_reports_a_job_that_failed_and_a_lost_connection(
    status: JobStatus | Exception, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(submit, "JobSubmissionClient", lambda address: JobClient(status))
    with pytest.raises(RunFailed, match=text) as caught:
        submit.submit_command(["run", "--out", "/runs/a"], "http://head:8265", None, said.append)
    assert caught.value.field == "job-1"
    assert said == ["job job-1", "first line"]


def test_submit_hides_the_reports_of_rays_client(monkeypatch: pytest.MonkeyPatch) -> None:
    loggers = [sdk.logger, dashboard_sdk.logger]
    for logger in loggers:
        monkeypatch.setattr(logger, "level", logging.INFO)
    monkeypatch.setattr(submit, "JobSubmissionClient", lambda address: JobClient(JobStatus.SUCCEEDED))
    submit.submit_command(["run", "--out", "/runs/a"], "http://head:8265", None, lambda line: None)
    assert [logger.level for logger in loggers] == [logging.ERROR, logging.ERROR]


@pytest.mark.parametrize("words", ["run", "compare fedavg --time 1", "tune fedavg", "report /runs/a"])
def test_submitted_command_that_writes_files_needs_out(words: str) -> None:
    with refuses("out"):
        submit.check_out(words.split())
    submit.check_out([*words.split(), "--out=/runs/a"])
    submit.check_out([*words.split(), "--config", "study.toml"])
    submit.check_out(["resume", "/runs/a"])


def test_submitted_folder_must_exist(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "none", tmp_path / "file"):
        with refuses("working_dir", got=path):
            submit.check_size(path)
    submit.check_size(tmp_path)
