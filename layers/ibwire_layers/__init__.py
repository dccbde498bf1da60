"""What the bytes of RDMA packets are: header layouts and their codecs.

Usable alone. `ibwire_layers.scapy` and `ibwire_layers.construct` hold the same
headers as Scapy layers and as a Construct grammar.
"""
