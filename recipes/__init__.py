"""The YAML files that `rlvr` composes: one folder per group, one file per choice."""
