"""Ports of the operating system: packet sockets, libpcap, UDP sockets, files and FIFOs.

Only this package opens sockets and reads clocks. The public classes are imported from their
modules, so that a program loads only those that it uses: `port.Port`,
`afpacket.AFPacketPort`, `pcap.PcapPort`, `udp.UDPPort`, `files.FileLink`, `tapped.TappedPort`,
`staged.Staged`, `arp_nd.NeighbourResponder`, `interface.interface`, and `live.Live`, which
runs a node on ports in real time.
"""
