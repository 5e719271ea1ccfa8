"""The small trained models, one of them served where none is named, and the tasks that they
learnt and are measured by. Knows no engine and no torch.

Tasks stand in the package, and not beside the trainer, because a score is drawn anew wherever the
package is installed.
"""
