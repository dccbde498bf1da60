"""ibwire reads, writes and checks RDMA packets: InfiniBand, RoCEv1 and RoCEv2."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("ibwire")
except PackageNotFoundError:  # a checkout on the path without an installation
    __version__ = "0+unknown"

__all__ = ["__version__"]
