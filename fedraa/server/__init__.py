"""Servers that apply client updates, one at a time or in rounds. Server shards use only its modules without torch."""
