"""Management of InfiniBand subnets: the agents of a node, and the doors for programs."""
