"""The functions of the package `fedraa.report` that the board uses. Importing this package takes seconds.

Other functions import this module inside their bodies, so that the list of runs and the curves do not wait for it. No
other module of the board imports `fedraa.report`. Otherwise two concurrent requests could start its import at two
different modules and block each other.
"""

from fedraa.report.command import run_command
from fedraa.report.runs import PER_RUN, value_text
from fedraa.report.single import BARS
from fedraa.report.timeline import select_clients

__all__ = ["BARS", "PER_RUN", "run_command", "select_clients", "value_text"]
