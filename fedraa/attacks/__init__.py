"""Attacks: a module for each way in which clients send wrong updates, for experiments with robust aggregators."""
