"""Benchmarks of TokenDance on real traces: every number is a ratio between systems measured in one run."""
