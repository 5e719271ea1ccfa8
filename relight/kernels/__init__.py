"""The ops of the network, one folder each. Ops never import each other; the model composes them."""
