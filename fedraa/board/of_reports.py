"""The functions that the board uses of the report package. The import of this package takes seconds.

Functions import this module when they first need it, so that the list and the curves do not wait for the import. No
other module of the board imports the report package. Therefore two concurrent requests cannot start its import at two
different modules and block each other.
"""

from fedraa.report.command import run_command
from fedraa.report.runs import PER_RUN, value_text
from fedraa.report.single import BARS
from fedraa.report.timeline import select_clients

__all__ = ["BARS", "PER_RUN", "run_command", "select_clients", "value_text"]
