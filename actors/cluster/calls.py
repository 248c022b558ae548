"""Remote calls of functions on the nodes of a Ray cluster, for work with many short runs such as tuning.

Each call takes one CPU.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayTaskError

from actors.cluster.engine import provide_cluster
from actors.cluster.own_parts import carry_by_value
from fedraa.config.sections import ClusterOptions
from fedraa.errors import RunFailed

Submit = Callable[..., Future[Any]]


@contextmanager
def open_calls(options: ClusterOptions, clients: int, parts: Iterable[object]) -> Iterator[Submit]:
    """Join a cluster in the block, and yield a function that calls functions on the nodes of the cluster.

    The yielded function works like `Executor.submit` of concurrent.futures, and returns a future. If a node dies, Ray
    repeats its calls on other nodes. The future raises the exception of the called function, or RunFailed if Ray could
    not finish the call.

    Args:
        options: The options of the cluster.
        clients: The number of clients of a run.
        parts: Objects that the calls need. The user's modules that define these objects are sent to the nodes.
    """
    with provide_cluster(options, clients):
        carry_by_value(parts)
        task: Any = ray.remote(num_cpus=1)(_call_function)
        yield lambda function, *args: _translate_errors(task.remote(function, *args).future())


def _call_function(function: Callable[..., object], *args: object) -> object:
    return function(*args)


def _translate_errors(call: Future[Any]) -> Future[Any]:
    """Return a future that has the result of `call`, or one of fedraa's errors in place of an error of Ray."""
    answer: Future[Any] = Future()

    def copy_outcome(ended: Future[Any]) -> None:
        try:
            answer.set_result(ended.result())
        except RayTaskError as error:
            answer.set_exception(error.cause or error)
        # Ray could not call the function.
        except (Exception, CancelledError) as error:
            answer.set_exception(
                RunFailed("cluster", f"a node was lost: {error}", hint="run the same command again to continue")
            )

    call.add_done_callback(copy_outcome)
    return answer
