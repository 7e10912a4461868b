"""Environments of Prime Intellect's `verifiers` package, for rows and rewards; the package is imported nowhere else."""
