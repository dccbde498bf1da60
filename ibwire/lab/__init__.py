"""Test networks of network namespaces and veth pairs on one machine; see `veth.Lab`."""
