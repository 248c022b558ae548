"""The Ray actors of a run. They contain no algorithm: each wraps a class of fedraa."""
