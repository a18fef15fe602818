"""Interfaces of programs that are no longer maintained, over stillbox."""
