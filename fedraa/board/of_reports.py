"""Functions of `fedraa.report` for the board. The import of `fedraa.report` takes seconds.

Functions of the board import this module in their bodies, so that the list of runs and the curves appear without this
delay. No other module of the board imports `fedraa.report`. Otherwise, two requests that import it at the same time
could block each other.
"""

from fedraa.report.command import repeat_command
from fedraa.report.runs import PER_RUN, default_options, value_text
from fedraa.report.timeline import select_clients

__all__ = ["PER_RUN", "default_options", "repeat_command", "select_clients", "value_text"]
