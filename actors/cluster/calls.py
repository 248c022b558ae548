"""Calls of functions on the nodes of a cluster, one CPU each, for work that is many short runs."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayTaskError

from actors.cluster.engine import cluster
from actors.cluster.own_parts import carry_by_value
from fedraa.config.experiment import Experiment
from fedraa.errors import RunFailed

Submit = Callable[..., Future[Any]]


@contextmanager
def calls(experiment: Experiment, parts: Iterable[object]) -> Iterator[Submit]:
    """Joins the experiment's cluster; what it gives takes a function and its arguments, as an executor's `submit`.

    The user's own modules that `parts` need travel by value. A call whose node dies is made again on another. What a
    function raises is raised by its future; what befalls a node for good is a RunFailed.
    """
    with cluster(experiment):
        carry_by_value(parts)
        task: Any = ray.remote(num_cpus=1)(_called)
        yield lambda function, *args: _told(task.remote(function, *args).future())


def _called(function: Callable[..., object], *args: object) -> object:
    return function(*args)


def _told(made: Future[Any]) -> Future[Any]:
    """The same call, with its errors as ours."""
    answer: Future[Any] = Future()

    def tell(ended: Future[Any]) -> None:
        try:
            answer.set_result(ended.result())
        except RayTaskError as error:
            answer.set_exception(error.cause or error)
        except (Exception, CancelledError) as error:  # of Ray's: the call cannot be made
            answer.set_exception(
                RunFailed("cluster", f"a node was lost: {error}", hint="run the same command again to continue")
            )

    made.add_done_callback(tell)
    return answer
