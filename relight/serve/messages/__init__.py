"""Anthropic's protocol, `/v1/messages`, as a translation to and from a chat completion's ask."""
