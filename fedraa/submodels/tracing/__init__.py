"""The tracer, which runs a module and finds the units that can be cut from it."""
