"""Stores, in which an asynchronous server keeps its parameters."""
