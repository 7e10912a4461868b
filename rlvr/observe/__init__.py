"""What a run shows of itself: metrics, rollouts, console, loggers and alarms."""
