"""Servers that apply client updates, one at a time or in rounds. Server shards import it without torch."""
