"""Runs AMD code objects on the CPU: what they compute, not how fast."""
