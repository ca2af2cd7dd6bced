"""NumPy arrays, on the CPU. bfloat16 is that of the package ml_dtypes."""

import numpy

from dfa import _arrays


def _pointer(array):
    return array.__array_interface__["data"][0]


def attention(q, k, v, *options):
    return _arrays.run(numpy, _pointer, 0, "cpu", q, k, v, *options)
