"""OpenAI's protocol of items, `/v1/responses`, translated to and from a chat call."""
