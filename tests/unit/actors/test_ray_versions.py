"""Differences between versions of Ray: each branch does what its version needs."""

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray._private import ray_constants, utils

from actors import ray_versions

HAS_TOKENS = hasattr(ray_versions._core, "AuthenticationTokenLoader")
RAYLET = ["raylet", "--session_dir=/s", "--node_id=ab", "--dashboard_agent_command=python agent.py", "--port=1"]


def test_ray_without_tokens_sends_no_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_versions, "_core", SimpleNamespace())
    ray_versions.reset_token()
    assert ray_versions.token_header() == []


@pytest.mark.skipif(not HAS_TOKENS, reason="Ray before 2.52 has no tokens")
def test_token_of_the_environment_is_in_the_header() -> None:
    code = "from actors.ray_versions import token_header; print(token_header())"
    environment = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 64}
    command = [sys.executable, "-c", code]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert output == f"[('authorization', 'Bearer {'a' * 64}')]\n"


def test_raylet_that_reads_ports_from_files_gets_placeholder_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    ports: list[tuple[object, ...]] = []
    names = {name: name.lower() for name in ray_versions.PORT_NAMES}
    core = SimpleNamespace(persist_port=lambda *arguments: ports.append(arguments), **names)
    monkeypatch.setattr(ray_versions, "_core", core)
    started: list[Sequence[str]] = []
    start = ray_versions._without_agents(lambda command, process_type, **options: started.append(command))
    start(RAYLET, ray_constants.PROCESS_TYPE_RAYLET)
    assert started == [["raylet", "--session_dir=/s", "--node_id=ab", "--dashboard_agent_command=cat", "--port=1"]]
    assert ports == [("/s", "ab", name, -1) for name in names.values()]
    start(RAYLET, ray_constants.PROCESS_TYPE_GCS_SERVER)
    assert started[1] == RAYLET


def test_raylet_that_gets_ports_as_arguments_keeps_its_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_versions, "_core", SimpleNamespace())
    start = object()
    assert ray_versions._without_agents(start) is start


@pytest.mark.skipif(not hasattr(utils, ray_versions.FIND_MISSING_LIBRARIES), reason="this Ray does not look for them")
def test_minimal_ray_does_not_import_the_libraries_of_the_dashboard() -> None:
    code = "import sys; from ray._private import utils; from actors.ray_versions import minimal_ray\n"
    code += "with minimal_ray(): missing = utils.get_dashboard_dependency_error()\n"
    code += "sys.exit(missing is not None or 'aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_files_are_visited_with_and_without_the_option_for_gitignore(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".gitignore").write_text("large\n")
    (tmp_path / "large").touch()
    (tmp_path / "code.py").touch()
    visited: list[str] = []
    ray_versions.visit_files(tmp_path, lambda path: visited.append(path.name))
    assert "code.py" in visited
    assert "large" not in visited

    def old_travel(path: Path, excludes: list[Any], handler: Callable[[Path], None], logger: object = None) -> None:
        handler(path / "old")

    monkeypatch.setattr(ray_versions.packaging, "_dir_travel", old_travel)
    ray_versions.visit_files(tmp_path, lambda path: visited.append(path.name))
    assert visited[-1] == "old"


def test_tips_are_hidden_and_other_warnings_are_not() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with ray_versions.hidden_tips():
            warnings.warn("Tip: In future versions of Ray, something changes", FutureWarning, stacklevel=1)
            warnings.warn("another", FutureWarning, stacklevel=1)
    assert [str(warning.message) for warning in seen] == ["another"]


def test_sigterm_during_a_start_of_ray_takes_effect_afterwards_in_the_handler_of_this_process() -> None:
    received: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append("this process"))
    try:
        with ray_versions.defer_sigterm():
            utils.set_sigterm_handler(lambda number, frame: received.append("Ray"))
            signal.raise_signal(signal.SIGTERM)
            # The handler of Ray's C++ code sets such an alarm, which would abort the process.
            signal.alarm(60)
            assert received == []
        assert received == ["this process"]
        assert signal.alarm(0) == 0
        signal.raise_signal(signal.SIGTERM)
        assert len(received) == 2
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("default_sigterm_handler")
def test_ray_installs_its_handler_of_sigterm_if_this_process_has_none() -> None:
    def handle(number: int, frame: object) -> None:
        raise AssertionError

    with ray_versions.defer_sigterm():
        utils.set_sigterm_handler(handle)
    assert signal.getsignal(signal.SIGTERM) is handle


def test_only_processes_of_this_process_are_listed() -> None:
    assert ray_versions.session_folder() is None
    assert ray_versions.started_processes("raylet") == []


@pytest.mark.parametrize("known", [True, False])
def test_actors_make_calls_in_any_order_if_ray_has_the_option(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {ray_versions.ANY_ORDER: None} if known else {}
    options = SimpleNamespace(ray_option_utils=SimpleNamespace(actor_options=names))
    monkeypatch.setattr(ray_versions, "_actor", options)
    assert ray_versions.any_order_option() == dict.fromkeys(names, True)


def test_installed_ray_accepts_the_option_for_calls_in_any_order() -> None:
    ray.remote(SimpleNamespace).options(**ray_versions.any_order_option())
