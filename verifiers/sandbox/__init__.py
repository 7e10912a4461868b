"""Runs hostile programs: a fork server whose children are confined by the kernel, and the trusted side that asks."""
