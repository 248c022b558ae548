"""The import of the modules that a worker needs, before its process receives an actor."""

from importlib import import_module

from fedraa.quick_imports import quick_imports

with quick_imports():
    import_module("actors.worker.worker")
