"""The functions that the board uses from the package `fedraa.report`, whose import takes seconds.

Functions of the board import this module inside their bodies, so that the list of runs and the curves do not wait for
the import. No other module of the board imports `fedraa.report`. Otherwise the threads of two requests could begin to
import different modules of the package and block each other.
"""

from fedraa.report.command import run_command
from fedraa.report.runs import PER_RUN, value_text
from fedraa.report.single import BARS
from fedraa.report.timeline import select_clients

__all__ = ["BARS", "PER_RUN", "run_command", "select_clients", "value_text"]
