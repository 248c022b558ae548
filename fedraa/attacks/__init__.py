"""Attacks, for experiments with robust aggregators. Each module has one way in which clients send wrong updates."""
