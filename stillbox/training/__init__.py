"""Schedules, optimizers, the step and the loop."""
