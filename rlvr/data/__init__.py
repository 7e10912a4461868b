"""Data: from rows of any source to tokenised prompts, and the order in which they are visited."""
