"""The HTTP server: the wire's schema, routes, streams, errors. Knows engines by their client."""
