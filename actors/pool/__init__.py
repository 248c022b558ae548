"""The executor of the engine `ray`: it sends clients' tasks to worker actors."""
