"""Time, memory, what a step costs on paper, and facts of the machine: how everything here is measured."""
