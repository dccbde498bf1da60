"""Ports of the operating system: packet sockets, libpcap, UDP sockets, files and FIFOs.

`Live` runs a node on ports in real time. Only this package opens sockets and reads clocks.
"""
