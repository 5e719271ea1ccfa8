"""The small trained model that is used where none is named, and the tasks that it learnt and is
measured by. Knows no engine and no torch.

Tasks stand in the package, and not beside the trainer, because a score is drawn anew wherever the
package is installed.
"""
