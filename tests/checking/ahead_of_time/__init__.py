"""Tests of stillbox.checking.ahead_of_time."""
