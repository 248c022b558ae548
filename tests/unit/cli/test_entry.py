"""The command `fedraa`: Ctrl-C during its imports prints one sentence."""

import sys

import pytest

from fedraa.__main__ import main


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
