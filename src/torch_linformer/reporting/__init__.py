"""Tables, plots and self-contained HTML, shared by training, analysis and benchmarks."""
