"""Programs that talk to a peer on a real link, each the counterpart of a tool of rdma-core or
perftest: what they say over TCP or the connection manager, what they post, what comes of it.
"""
