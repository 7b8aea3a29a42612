"""One training step as events: tasks, copies, memory."""
