"""Instructions whose keeping can be counted: the parts of `rlvr.verifiers.constraints`."""
