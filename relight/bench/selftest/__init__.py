"""The benchmark of the benchmark: a scripted server, and a case for every trap that a client can
meet. Knows the whole of the measuring, and no engine."""
