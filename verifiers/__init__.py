"""Rule-based verifiers: from a completion and a reference to a verdict. No torch; usable from any trainer."""
