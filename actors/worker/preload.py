"""An import of the modules that a worker needs. Ray runs it in a new process before the process becomes a worker."""

from importlib import import_module

from fedraa.quick_imports import quick_imports

with quick_imports():
    import_module("actors.worker.worker")
