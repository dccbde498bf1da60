"""ibwire reads, writes, checks and imitates RDMA packets: InfiniBand, RoCEv1 and RoCEv2."""


def __getattr__(name: str) -> str:
    """`__version__`, looked up in the installation when somebody asks."""
    if name == "__version__":
        from importlib.metadata import version

        return version("ibwire")
    raise AttributeError(name)
