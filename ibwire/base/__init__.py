"""What every package may use: errors, units, nodes, traces, histograms, TOML with positions."""
