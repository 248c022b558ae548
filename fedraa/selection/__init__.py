"""Selections of clients: each module registers one, or several simple ones, for the option `participation`."""
