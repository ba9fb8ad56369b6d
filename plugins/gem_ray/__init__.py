"""Ray: environments on the machines of a Ray cluster, one by one or as a vector."""
