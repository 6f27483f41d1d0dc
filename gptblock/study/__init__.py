"""The lecture's experiments: what each part of the transformer block is worth, measured."""
