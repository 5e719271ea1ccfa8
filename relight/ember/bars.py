"""What ember must reach in each task, in percent, with its shipped weights. Knows no answer."""

from relight.ember.tasks import Task

BARS: dict[Task, float] = {
    "arithmetic": 90.0,
    "letters": 90.0,
    "tool call": 95.0,
    "tool result": 95.0,
    "key 1K": 95.0,
    "key 4K": 80.0,
}
"""Each holds for each language by itself."""
