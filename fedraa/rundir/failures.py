"""The failed tasks of each client, and the reason of a failed run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedraa.ledger.bad_clients import QUARANTINED
from fedraa.reading.regular_files import read_regular_file
from fedraa.rundir.file_names import FAILURE

# Maximum number of clients that a message names.
MAX_NAMED_CLIENTS = 10
# Maximum number of reasons that a message about failures names.
MAX_NAMED_REASONS = 3


class Failures:
    """Totals of a log's `drop` lines.

    Attributes:
        tasks: The number of failed tasks.
        quarantined: An entry for each quarantined client, with the reason and the time on the run's clock.
    """

    def __init__(self) -> None:
        self.tasks = 0
        self.quarantined: list[dict[str, Any]] = []
        self._clients: dict[int, dict[str, Any]] = {}

    def add(self, line: Mapping[str, Any]) -> None:
        """Count a `drop` line. A line without a required field changes nothing."""
        client, reason, action, time = (line[name] for name in ("client", "error", "action", "t"))
        tasks = self._clients.get(client, {"tasks": 0})["tasks"] + 1
        self._clients[client] = {"client": client, "tasks": tasks, "reason": reason}
        self.tasks += 1
        if action == QUARANTINED:
            self.quarantined.append({"client": client, "reason": reason, "time": time})

    def summary_entries(self) -> dict[str, Any]:
        """Return three entries of summary.json.

        `dropped` is the number of failed tasks. `dropped_clients` lists each client with failed tasks, the number of
        these tasks and the last reason. `quarantined` lists each quarantined client, the reason and the time on the
        run's clock.
        """
        by_number = sorted(self._clients.values(), key=lambda entry: entry["client"])
        return {"dropped": self.tasks, "dropped_clients": by_number, "quarantined": self.quarantined}


def retried_clients(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of `dropped_clients` about clients that are not quarantined."""
    quarantined = {entry["client"] for entry in summary["quarantined"]}
    return [entry for entry in summary["dropped_clients"] if entry["client"] not in quarantined]


def describe_clients(clients: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a text for each reason, with the clients that failed for it. The most frequent reason is first.

    `clients` are entries of `dropped_clients` or `quarantined`. At most `MAX_NAMED_REASONS` reasons have a text.
    Another text counts the clients with other reasons.
    """
    reasons: dict[str, list[int]] = {}
    for entry in clients:
        reasons.setdefault(entry["reason"], []).append(entry["client"])
    frequent = sorted(reasons.items(), key=lambda item: -len(item[1]))
    phrases = [f"{name_clients(sorted(numbers))}: {reason}" for reason, numbers in frequent[:MAX_NAMED_REASONS]]
    if len(frequent) > MAX_NAMED_REASONS:
        count = sum(len(numbers) for _, numbers in frequent[MAX_NAMED_REASONS:])
        phrases.append(f"{count} more for other reasons, which are in summary.json")
    return phrases


def name_clients(numbers: Sequence[int], names: Sequence[str] | None = None) -> str:
    """Return a text that names at most `MAX_NAMED_CLIENTS` of these clients and counts the others.

    Args:
        numbers: The numbers of the clients.
        names: The names of all clients in the data, if they have names. A name that is only the number is left out.
    """
    words = []
    for client in numbers[:MAX_NAMED_CLIENTS]:
        if names is None or names[client] == str(client):
            words.append(str(client))
        else:
            words.append(f"{client} ({names[client]})")
    text = f"client{'s' * (len(numbers) > 1)} {', '.join(words)}"
    if len(numbers) > MAX_NAMED_CLIENTS:
        text += f" and {len(numbers) - MAX_NAMED_CLIENTS} more"
    return text


def read_failure(directory: Path) -> str:
    """Return the reason why the run failed; empty if the run was resumed or has not failed."""
    try:
        return read_regular_file(directory / FAILURE).decode(errors="replace").strip()
    except FileNotFoundError:
        return ""
