"""The commands of `rlvr`, one module each with `main(argv) -> exit code`."""
