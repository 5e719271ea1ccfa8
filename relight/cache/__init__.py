"""What a sequence remembers: bytes of every kind (layout), pages and prefixes (blocks, prefix),
tensors (pool). Layout, blocks and prefix know no torch."""
