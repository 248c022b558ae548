"""The functions that the board takes from the report package, whose import takes seconds.

Functions import this module when they first need it, so that the list and the curves do not wait for it. It is the only
such import, so that two concurrent requests do not import the report package from two ends.
"""

from fedraa.report.command import command
from fedraa.report.runs import PER_RUN, words
from fedraa.report.single import BARS
from fedraa.report.timeline import lanes

__all__ = ["BARS", "PER_RUN", "command", "lanes", "words"]
