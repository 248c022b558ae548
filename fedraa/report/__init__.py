"""From run directories to one page of tables and figures, and to other people's dashboards."""

from fedraa.report.report import report

__all__ = ["report"]
