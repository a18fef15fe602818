"""Past one machine: Ray and Apache Beam, by thin wrappers."""
