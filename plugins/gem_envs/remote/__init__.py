"""Remote environments: clients of environment servers, and a server for gem's environments."""
