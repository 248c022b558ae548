"""What the board has in common with reports, whose room takes seconds to import.

Imported within functions, when it is first needed: the list and the curves need not wait for it. This module is the
only way there, so that two requests at a time do not import that room from two ends.
"""

from fedraa.report.command import command
from fedraa.report.runs import PER_RUN, words
from fedraa.report.single import BARS
from fedraa.report.timeline import lanes

__all__ = ["BARS", "PER_RUN", "command", "lanes", "words"]
