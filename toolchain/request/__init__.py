"""The options of an invocation, and the request that holds their values."""
