"""A chat in the terminal: sources of answers, the conversation, what shows it, commands."""
