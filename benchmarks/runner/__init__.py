"""How a suite is measured, kept and shown."""
