"""Sequence-classification models in a process of their own: the other side of `rlvr.verifiers.reward_model`."""
