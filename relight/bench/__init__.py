"""Measuring any OpenAI-compatible server: a strict client, load, statistics, a validity gate, and a
scripted server that the measuring itself is tried on. Knows no engine: only what the wire shows."""
