"""Local optimizers that set the learning rate themselves. Each module registers its optimizers by name."""
