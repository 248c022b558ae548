"""The devices: what they can do, when they are there, what a task costs on them."""
