"""Attention of the package dfa-attention by flash-attn's names: exact, forward and backward, on NVIDIA GPUs and processors."""

try:
    from dfa.flash_attn import *  # noqa: F403
    from dfa.flash_attn import __all__
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "dfa":
        raise
    raise ImportError("this kernel is a door to the package dfa-attention, which is not installed; type: pip install "
                      "'dfa-attention[cuda]'") from error
