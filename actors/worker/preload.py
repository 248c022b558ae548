"""Imports that Ray executes in new processes before they become workers."""

from importlib import import_module

from fedraa.quick_imports import quick_imports

with quick_imports():
    import_module("actors.worker.worker")
