"""Who takes part in the benchmarks: our modules, ordinary attention, and other packages that are installed."""
