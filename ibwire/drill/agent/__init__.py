"""The agent of drill on the host of a device under test, and on an emulated device."""
