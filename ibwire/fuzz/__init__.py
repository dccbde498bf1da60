"""Stateful fuzzing of RDMA endpoints, with the emulator as the model of what is right.

A case is a list of symbolic steps, bound to whatever connection it runs on. A generator
makes it step by step while it watches the reference; a duel carries each step out on the
reference and on the target and compares what comes of it. `cm` does so with connection
managers, `live` with devices on a link, `live_cm` with their connection managers.
"""
