"""Attacks: some clients send wrong updates, for experiments with robust aggregators."""
