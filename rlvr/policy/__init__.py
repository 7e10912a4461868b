"""The policy: the model that is trained, its log-probs and its updates."""
