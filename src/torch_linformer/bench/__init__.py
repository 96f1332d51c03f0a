"""Speed and memory beside other implementations: contenders, how they are measured, and suites of cases."""
