"""Counterparts of tools of rdma-core and perftest on a real link: pingpong, perf and rping."""
