"""The options of an invocation and the request that they make."""
