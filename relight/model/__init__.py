"""The network: weights, inputs, layers over cached state, and the plain float32 oracle."""
