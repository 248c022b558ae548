"""Local optimizers that find the learning rate. Each module registers its optimizers by name."""
