"""How ember, the checkpoint inside the package, is made: text, tokenizer, network, trainer, export.
Not installed with the package."""
