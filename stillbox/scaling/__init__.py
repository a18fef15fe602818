"""Prediction, serving and conversion on several machines, by Ray and Apache Beam."""
