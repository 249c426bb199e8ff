"""The options of an invocation, and the request that contains their values."""
