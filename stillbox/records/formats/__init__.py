"""Annotation formats: one module each, found by `registry.all_formats`.

A module that registers a format with `registry.register` adds it; nothing else changes.
"""
