"""Rollout engines: what samples completions from the current policy."""
