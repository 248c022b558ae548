"""The simulated devices of the clients: compute speed, links, memory, availability, and the cost of a task."""
