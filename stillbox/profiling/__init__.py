"""Where the time of a step goes: traces, what they hold, and a page about it."""
