"""What every other room may use: errors, types, configuration, formats. Knows nothing of torch."""
