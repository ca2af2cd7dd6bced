"""The parts of benchmarks/context_parallel.py."""
