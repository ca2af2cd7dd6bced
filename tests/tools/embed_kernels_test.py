#!/usr/bin/env python3
"""What DFA_EMBED_ARCHS puts into the library is found there: the table has the digest that the store asks for."""
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "cmake/embed_kernels.cmake"
DIGEST = "0123456789abcdef0123456789abcdef"


class EmbedKernels(unittest.TestCase):
    def test_the_digest_ends_where_the_compilers_name_begins(self):
        with tempfile.TemporaryDirectory() as folder:
            kernels = pathlib.Path(folder, "kernels")
            kernels.mkdir()
            (kernels / f"{DIGEST}.nvrtc-13.0.kernel").write_text("a kernel")
            made = pathlib.Path(folder, "menu.cpp")
            subprocess.run(["cmake", f"-DFOLDER={folder}", f"-DOUTPUT={made}", "-P", SCRIPT], check=True)
            self.assertIn(f'{{"{DIGEST}", {{dfa_kernel_0, ', made.read_text())


if __name__ == "__main__":
    unittest.main()
