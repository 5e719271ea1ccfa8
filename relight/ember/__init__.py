"""The tasks that the small checkpoint of `training/` is trained on and measured by. Knows no engine
and no torch.

They stand in the package, and not beside the trainer, because a score is drawn anew wherever the
package is installed.
"""
