"""Network namespaces and veth pairs for tests on one machine."""
