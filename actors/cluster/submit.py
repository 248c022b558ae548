"""Submission of a fedraa command to a cluster as a job, which continues when this machine is switched off."""

import asyncio
import logging
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from aiohttp import ClientError
from ray.job_submission import JobSubmissionClient

from actors.cluster.attach import package_folders
from actors.cluster.head import token_error
from actors.ray_versions import MAX_JOB_BYTES, AuthenticationError, visit_files
from fedraa.engine.memory_check import GIGA
from fedraa.errors import InputError, RunFailed, first_line

# Without `--out`, these commands write into the folder in which they start.
COMMANDS_WITH_OUT = ("run", "compare", "tune", "report")
# Ray's loggers that report uploads and connections. Two of them have a level of their own.
QUIET_LOGGERS = ("ray", "ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk")


def submit_command(
    arguments: Sequence[str], address: str, working_dir: Path | None, say: Callable[[str], None]
) -> None:
    """Run a command of fedraa as a job on the head node, with this machine's code, and show its output.

    Args:
        arguments: The command and its options, without `fedraa`.
        address: The address of the cluster's dashboard.
        working_dir: A folder that is sent to the cluster, if any.
        say: Called with the output of the job.

    Raises:
        InputError: No dashboard answers at the address, it requires another token, the folder is too large, or `--out`
            is missing or a relative path.
        RunFailed: The command failed, or the connection to the dashboard was lost.
    """
    check_address(address)
    check_out(arguments)
    environment: dict[str, Any] = {"py_modules": package_folders()}
    if working_dir is not None:
        check_size(working_dir)
        environment["working_dir"] = str(working_dir)
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        client = JobSubmissionClient(address)
    except ConnectionError:
        raise InputError("address", f"no dashboard of a Ray cluster answers at {address}") from None
    except (AuthenticationError, RuntimeError):
        raise token_error(address) from None
    command = shlex.join(["python", "-m", "fedraa", *arguments])
    try:
        job = client.submit_job(entrypoint=command, runtime_env=environment)
    except RuntimeError as error:
        # The text of this error is the answer of Ray's dashboard.
        raise RunFailed("address", f"no job could be submitted at {address}: {error}") from None
    say(f"job {job}")
    try:
        asyncio.run(_follow_output(client, job, say))
        status = client.get_job_status(job)
    except (RuntimeError, OSError, ClientError) as error:
        problem = f"the connection to {address} was lost: {first_line(error)}"
        raise RunFailed(job, problem, hint="the job may still run: ray job list") from None
    if not status.is_terminal():
        problem = f"its output has ended, but the job at {address} is {status.lower()}"
        raise RunFailed(job, problem, hint="see its state with: ray job list")
    if status != "SUCCEEDED":
        raise RunFailed(job, f"the job at {address} ended as {status.lower()}")


def check_address(address: str) -> None:
    """Raise InputError if the address is not a URL. Ray would take it for the address of a cluster, and wait."""
    if not address.startswith(("http://", "https://")):
        expected = "the URL of the cluster's dashboard, such as http://127.0.0.1:8265"
        raise InputError("address", got=address, expected=expected)


def check_out(arguments: Sequence[str]) -> None:
    """Raise InputError if `--out` is a relative path, or if a command that needs `--out` lacks it.

    The job does not start in the folder of the user, and the folder in which it starts may be removed later. With
    `--config`, the path may be in the file.
    """
    expected = "an absolute path on the head node, such as /data/runs/job"
    flags = {argument.partition("=")[0] for argument in arguments}
    if arguments[0] in COMMANDS_WITH_OUT and flags.isdisjoint(("--out", "--config")):
        raise InputError("out", "it is missing", expected=expected)
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        flag, equals, value = argument.partition("=")
        if not equals:
            value = following
        if flag == "--out" and not PurePosixPath(value).is_absolute():
            raise InputError("out", got=value, expected=expected)


def check_size(folder: Path) -> None:
    """Raise InputError if a folder does not exist, or is too large for a job.

    Files that its .gitignore names do not count.
    """
    if not folder.is_dir():
        raise InputError("working_dir", got=folder, expected="a folder")
    total = 0

    def add_size(path: Path) -> None:
        nonlocal total
        if path.is_file():
            total += path.stat().st_size

    visit_files(folder, add_size)
    if total > MAX_JOB_BYTES:
        raise InputError(
            "working_dir",
            f"{folder} has {total / GIGA:.3g} GB, but a job may have at most {MAX_JOB_BYTES / GIGA:.3g} GB",
            hint="list the files that the job does not need in the .gitignore of this folder",
        )


async def _follow_output(client: JobSubmissionClient, job: str, say: Callable[[str], None]) -> None:
    async for lines in client.tail_job_logs(job):
        say(lines.rstrip("\n"))
