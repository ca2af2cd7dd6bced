"""What editors and type checkers read: annotations of every public name, and stubs that agree with the code."""

import ast
import importlib
import inspect
import pathlib
import typing

import pytest

import dfa

STUB = pathlib.Path(dfa.__file__).with_name("_attention.pyi")
PUBLIC = [name for name in dfa.__all__ if name != "Plan"]  # that one is compiled: _core.pyi


def test_the_package_says_that_it_is_typed():
    folder = pathlib.Path(dfa.__file__).parent
    assert (folder / "py.typed").exists() and (folder / "_core.pyi").exists() and STUB.exists()


def test_every_overload_of_attention_has_the_parameters_of_the_function():
    known = {p.name: p.default for p in inspect.signature(dfa.attention).parameters.values()}
    overloads = [node for node in ast.parse(STUB.read_text()).body
                 if isinstance(node, ast.FunctionDef) and node.name == "attention"]
    assert len(overloads) == 3
    for overload in overloads:
        arguments = overload.args
        assert [a.arg for a in arguments.args] == ["q", "k", "v"]
        assert {a.arg for a in arguments.kwonlyargs} == set(known) - {"q", "k", "v"}
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults):
            if default is not None:  # one overload demands return_lse
                assert ast.literal_eval(default) == known[argument.arg], argument.arg


@pytest.mark.parametrize("name", [n for n in PUBLIC if n != "attention"])
def test_parameters_and_results_are_annotated(name):
    item = getattr(dfa, name)
    function = item.__init__ if inspect.isclass(item) else item
    hints = typing.get_type_hints(function)
    wanted = {p for p in inspect.signature(function).parameters if p != "self"}
    assert wanted <= set(hints) and (inspect.isclass(item) or "return" in hints)


@pytest.mark.parametrize("name", PUBLIC)
def test_docstrings_tell_what_raises(name):
    assert name == "backends" or "Raises" in inspect.getdoc(getattr(dfa, name))


def test_a_meter_has_the_fields_that_it_announces():
    hints = typing.get_type_hints(dfa.EnergyMeter)
    with dfa.EnergyMeter("cpu") as meter:
        pass
    for field, kind in hints.items():
        assert isinstance(getattr(meter, field), kind), field


def test_the_stub_of_the_package_names_what_the_package_has():
    tree = ast.parse(pathlib.Path(dfa.__file__).with_suffix(".pyi").read_text())
    names = {alias.asname: node.module for node in tree.body if isinstance(node, ast.ImportFrom)
             for alias in node.names}
    assert set(names) == set(dfa.__all__)
    for name, module in names.items():
        assert getattr(importlib.import_module(module), name) is getattr(dfa, name)
