"""Devices and processes: the mesh, jobs of several processes, settings of a process."""
