"""rlvr: reinforcement learning with verifiable rewards, from YAML recipes."""

__version__ = "0.1.0"
