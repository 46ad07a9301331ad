"""Benchmarks: interleaved measurements that print a table and keep raw samples. None asserts an absolute time."""
