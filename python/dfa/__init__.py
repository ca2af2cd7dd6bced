"""Dynamic FlashAttention++: exact attention that governs its own joules."""

__version__ = "0.1.0"
