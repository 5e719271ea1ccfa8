"""Conversations to token ids and token ids to text, reasoning and tool calls. Knows no torch."""
