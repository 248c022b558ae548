"""The settings of a run: the class Experiment, its options in sections, and configuration files."""
