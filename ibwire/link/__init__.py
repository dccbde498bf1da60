"""Links to what is not the simulator: recorded peers, capture files, FIFOs.

This is the only package that reads a clock.
"""
