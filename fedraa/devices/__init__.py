"""The devices: their compute speed, their availability, and the cost of a task on them."""
