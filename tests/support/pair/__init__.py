"""A pair of master and slave in the simulator: nodes, clients, faults and the checks."""
