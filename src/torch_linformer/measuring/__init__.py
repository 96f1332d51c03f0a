"""How everything here is measured: time, memory, facts of the machine, and the cost of a step on paper."""
