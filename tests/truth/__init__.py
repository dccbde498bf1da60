"""Numbers of simulators from outside this project, and runs of the same networks here.

The files in `data/` are results of ns-3 HPCC (alibaba-edu/High-Precision-Congestion-Control) and
tables of switch vendors; each says where it comes from. `more_senders` was made here, by a build of
the same simulator that gives the figures of the other files one by one.
"""
