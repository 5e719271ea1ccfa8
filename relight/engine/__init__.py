"""Requests to tokens: scheduler, step plans, runner, the main loop, the client to it."""
