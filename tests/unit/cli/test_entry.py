"""The command `fedraa`: one sentence for Ctrl-C during its imports, and for a current folder that was deleted."""

import logging
import sys
import warnings
from pathlib import Path

import pytest

from fedraa.__main__ import main
from fedraa.cli.exit_code import warnings_in_sentences
from fedraa.errors import RunWarning


class Interrupts:
    def find_spec(self, name: str, *rest: object) -> None:
        if name == "fedraa.cli.main":
            raise KeyboardInterrupt


def test_ctrl_c_while_the_command_line_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "fedraa.cli.main", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupts(), *sys.meta_path])
    assert main() == 130
    assert capsys.readouterr() == ("", "\nfedraa: interrupted\n")


def test_current_folder_that_was_deleted_is_one_sentence(
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


def test_logged_warnings_have_the_form_of_other_warnings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logger = logging.getLogger("actors.cluster.engine")
    with warnings_in_sentences():
        logger.warning("server: %s; it is started again", "it died")
        warnings.warn("clients: one", RunWarning, stacklevel=1)
    lines = ["fedraa: warning: server: it died; it is started again", "fedraa: warning: clients: one"]
    assert capsys.readouterr().err.splitlines() == lines
    assert not logging.getLogger("actors").handlers
