"""The command line `fedraa`: its commands, their options, and their output."""
