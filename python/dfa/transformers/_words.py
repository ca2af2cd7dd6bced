"""The name, and how a model is refused under it."""

NAME = "dfa"


def refuse(what, instead="'sdpa' or 'eager'"):
    raise ValueError(f"{what}: not supported by attn_implementation='{NAME}'; accepted instead: {instead}")
