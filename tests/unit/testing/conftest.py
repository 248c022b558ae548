"""A fixture of the tests of `fedraa check`."""

import pytest

from fedraa.testing import kit


@pytest.fixture
def no_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no other processes, because their start takes seconds."""
    monkeypatch.setattr(kit, "can_travel", lambda kind, part: False)
