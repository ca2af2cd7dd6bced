#!/usr/bin/env python3
"""The reference of the Python package as Markdown, read from its source without importing it.

Usage: docs/reference/python_page.py FOLDER_OF_THE_PACKAGE >PAGE.md
"""
import pathlib
import sys
import textwrap

import griffe

MODULES = ("torch", "transformers", "flash_attn", "hub", "jax")  # beside the package itself


def public_names(package):
    """What `dfa` offers: the names of its stub, with the objects that they stand for."""
    stub = griffe.visit("dfa", package / "__init__.pyi", (package / "__init__.pyi").read_text())
    return {name: alias.target_path for name, alias in stub.members.items() if alias.is_alias}


def signature(function):
    words, keyword_only = [], False
    for p in function.parameters:
        if p.name == "self":
            continue
        if p.kind is griffe.ParameterKind.keyword_only and not keyword_only:
            words.append("*")
            keyword_only = True
        star = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}
        words.append(star.get(p.kind, "") + p.name + (f"={p.default}" if p.default else ""))
    return f"({', '.join(words)})"


def text_of(item):
    return item.docstring.value if item.docstring else None


def entry(title, item, level="##"):
    call = ""
    if item.is_function:
        call = signature(item)
    elif item.is_class and "__init__" in item.members:
        call = signature(item.members["__init__"])
    code = textwrap.wrap(title + call, 90, subsequent_indent="    ")
    parts = [f"{level} {title}", "```\n" + "\n".join(code) + "\n```"]
    if text_of(item):
        parts.append("```\n" + text_of(item) + "\n```")
    if item.is_class:
        parts += [entry(f"{title.split('.')[-1]}.{name}", member, "###")
                  for name, member in item.members.items()
                  if not name.startswith("_") and text_of(member)]
    return "\n\n".join(parts)


def page(package):
    loader = griffe.GriffeLoader(search_paths=[package.parent])
    dfa = loader.load("dfa")
    parts = ["# The Python package", "```\n" + text_of(dfa) + "\n```"]
    for name, target in public_names(package).items():
        place = target.removeprefix("dfa.")
        if place.startswith("_core."):  # compiled
            continue
        parts.append(entry(f"dfa.{name}", dfa[place]))
    for name in MODULES:
        module = dfa[name]
        exported = {str(word) for word in module.exports or ()}
        parts += [f"# dfa.{name}", "```\n" + text_of(module) + "\n```"]
        parts += [entry(f"dfa.{name}.{key}", item) for key, item in module.members.items()
                  if not key.startswith("_") and (not item.is_alias or key in exported) and text_of(item)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(page(pathlib.Path(sys.argv[1])), end="")
