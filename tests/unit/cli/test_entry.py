"""The command `fedraa`: Ctrl-C during its imports, a deleted folder, its warnings, and closed streams."""

import errno
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from fedraa.__main__ import main
from fedraa.cli.exit_code import exit_code, warnings_in_sentences
from fedraa.cli.main import main as command_line
from fedraa.errors import RunWarning
from fedraa.waiting import printed_log


def fail_import(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the import of the command line raise an error."""

    class FailingFinder:
        def find_spec(self, name: str, *rest: object) -> None:
            if name == "fedraa.cli.main":
                raise error

    monkeypatch.delitem(sys.modules, "fedraa.cli.main", raising=False)
    monkeypatch.setattr(sys, "meta_path", [FailingFinder(), *sys.meta_path])


def warn_of_run(text: str) -> None:
    warnings.warn(text, RunWarning, stacklevel=1)


def raise_error(text: str) -> None:
    raise ValueError(text)


def test_ctrl_c_during_the_imports_exits_with_code_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_import(KeyboardInterrupt(), monkeypatch)
    assert main() == 130
    assert capsys.readouterr() == ("", "\nfedraa: interrupted\n")


def test_missing_package_exits_with_code_2_and_names_the_python(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_import(ModuleNotFoundError("No module named 'tyro'", name="tyro"), monkeypatch)
    assert main() == 2
    err = capsys.readouterr().err
    assert err.startswith(f"fedraa: {sys.executable} ")
    assert "tyro" in err
    assert err.count("\n") == 1


def test_deleted_current_folder_exits_with_code_2_and_one_error_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr(sys, "argv", ["fedraa", "doctor"])
    assert main() == 2
    err = capsys.readouterr().err
    assert err.startswith("fedraa: folder: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(("note", "expected"), [("", "free space"), ("runs ended", "runs ended")])
def test_full_disk_is_one_line_with_the_next_step(note: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    def fill_disk() -> None:
        error = OSError(errno.ENOSPC, "No space left on device")
        if note:
            error.add_note(note)
        raise error

    assert exit_code(fill_disk) == 2
    err = capsys.readouterr().err
    assert err.startswith("fedraa: the system: ")
    assert err.split("; ")[1].startswith(expected)
    assert err.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_run_that_cannot_print_its_result_says_that_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["run", "--method", "fedavg", "--rounds", "1", "--clients", "2", "--hidden", "4", "--engine", "local"]
    with suppress(OSError), open("/dev/full", "w", buffering=1) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert command_line([*run, "--out", str(tmp_path / "run")]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("fedraa: standard output: ")
    assert last.endswith(f"is complete: {tmp_path / 'run'}")
    assert (tmp_path / "run" / "summary.json").is_file()


def test_logged_warnings_have_the_form_of_other_warnings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logger = logging.getLogger("actors.cluster.engine")
    default = logging.lastResort
    with warnings_in_sentences():
        logger.warning("server: %s; it is started again", "it died")
        logging.getLogger("fedraa.engine").warning("run: waiting")
        logging.getLogger("another").warning("of another package")
        warnings.warn("clients: one", RunWarning, stacklevel=1)
    lines = ["fedraa: warning: server: it died; it is started again", "fedraa: warning: run: waiting"]
    lines += ["of another package", "fedraa: warning: clients: one"]
    assert capsys.readouterr().err.splitlines() == lines
    assert logging.lastResort is default


def test_warnings_are_logged_once_if_a_custom_component_configures_logging(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with warnings_in_sentences():
        logging.basicConfig(format="log %(message)s", stream=sys.stderr)
        logging.getLogger("actors.cluster.engine").warning("server: it died")
    assert capsys.readouterr().err.splitlines() == ["log server: it died"]


@pytest.mark.parametrize("arguments", [["--version"], ["methods", "fedavg"]])
def test_command_with_closed_standard_streams_succeeds(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "fedraa", *arguments]
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, preexec_fn=close_stdin_and_stdout)
    assert (done.returncode, done.stderr) == (0, b"")


def close_stdin_and_stdout() -> None:
    os.close(0)
    os.close(1)


def test_stdout_escapes_characters_that_its_encoding_lacks() -> None:
    command = [sys.executable, "-m", "fedraa", "methods", "fed-raa"]
    done = subprocess.run(command, check=False, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert rb"\u2190" in done.stdout


def test_log_lines_are_lost_without_an_error_if_the_reader_of_stdout_has_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with suppress(BrokenPipeError), open(writer, "w", buffering=1) as stream, printed_log(to_stdout=True):
        monkeypatch.setattr(sys, "stdout", stream)
        logging.getLogger("fedraa").info("a line")
        monkeypatch.setattr(sys, "stdout", None)
        logging.getLogger("fedraa").info("another line")
    assert capsys.readouterr().err == ""


@pytest.mark.linux
@pytest.mark.parametrize(
    ("warn", "expected"), [(logging.getLogger("fedraa").warning, 0), (warn_of_run, 0), (raise_error, 2)]
)
def test_lines_for_a_full_disk_are_lost_without_an_error(
    warn: Callable[[str], None], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])

    def command() -> None:
        with warnings_in_sentences():
            warn("clients: one")

    with suppress(OSError), open("/dev/full", "w", buffering=1) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        assert exit_code(command) == expected
