"""A model that is there, given our attention; and which of its layers really ask for it."""

import inspect
from typing import NamedTuple

from dfa.transformers._words import NAME


class Served(NamedTuple):
    """The names of a model's attention layers: served by dfa, and others, which keep an attention of their own."""

    layers: list[str]
    others: list[str]

    def __str__(self):
        served = f"{len(self.layers)} attention layers are served by dfa: {', '.join(self.layers)}"
        return served + (f"; {len(self.others)} keep their own: {', '.join(self.others)}" if self.others else "")


def enable(model):
    """Serve the model's attention layers by dfa; returns their names, as Served.

    The same as attn_implementation="dfa" at from_pretrained, with a check: many model types take any name and never ask
    for it. Raises ValueError where no layer does; the model then stays as it was.
    """
    from dfa.transformers import register

    name = type(model).__name__
    if isinstance(model, type):
        raise ValueError(f"{model.__name__} is a class; accepted: a PreTrainedModel that is made of it")
    if not hasattr(model, "set_attn_implementation"):
        raise ValueError(f"{name} is no model of transformers; accepted: a PreTrainedModel")
    asking = {path: module for path, module in model.named_modules() if _asks(type(module))}
    if not asking:
        raise ValueError(f"{name} has attention of its own and never asks for attn_implementation; accepted: models whose "
                         "layers call transformers' AttentionInterface")
    before = model.config._attn_implementation
    model.set_attn_implementation(register())
    layers = [path for path, module in asking.items() if _implementation(module) == NAME]
    if not layers:
        model.set_attn_implementation(before)
        raise ValueError(f"{name} did not take attn_implementation='{NAME}' for any of its layers")
    return Served(layers, [path for path, module in model.named_modules() if path not in layers
                           and _looks_like_attention(path, module, asking)])


def _implementation(module):
    return getattr(getattr(module, "config", None), "_attn_implementation", None)


def _asks(kind):
    """Does a method of this class look its attention up by name?"""
    methods = [method for base in kind.__mro__ if base.__module__ not in _BASES for method in vars(base).values()]
    code = (getattr(inspect.unwrap(method), "__code__", None) for method in methods if inspect.isfunction(method))
    return any("ALL_ATTENTION_FUNCTIONS" in one.co_names for one in code if one is not None)


_BASES = ("transformers.modeling_utils", "torch.nn.modules.module", "builtins")  # know the names, and attend to nothing


def _looks_like_attention(path, module, asking):
    inside = any(path == one or path.startswith(one + ".") or one.startswith(path + ".") for one in asking)
    return "attention" in type(module).__name__.lower() and (not inside or path in asking)
