"""The `relight` command: flags from settings, tables, errors in one line. Decides nothing."""
