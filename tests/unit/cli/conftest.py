"""What fuzz tests of the command line share."""

import pytest

from fedraa import api as front


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run ends where its first task would begin: what is refused must be so before."""
    monkeypatch.setattr(front, "_execute_run", lambda *args, **kwargs: None)
