"""The small checkpoint that comes with the package, and the tasks that it is measured by. Knows no
engine and no torch.

The tasks live here and not beside the trainer, because `relight eval` makes its held-out instances
from an installed package. The trainer imports them from here, with the other side of the split.
"""
