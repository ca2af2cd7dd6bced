"""dfa selftest: every kernel family that works here, against fp64."""


def test_it_checks_every_target_and_says_which_are_not_there(dfa):
    done = dfa("selftest")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = done.stdout.splitlines()
    assert sum(line.startswith("cpu_portable  ok ") for line in lines) == 9
    for target in ("cpu_portable", "cpu_avx2", "cpu_avx512", "cpu_amx", "cuda_sm75", "cuda_sm80", "cuda_sm90"):
        told = [line for line in lines if line.startswith(target)]
        # A target that is not there says so once; AMX, which multiplies bf16 alone, refuses the others by element type.
        assert len(told) in ((1, 8, 9) if target == "cpu_amx" else (1, 9)), told
    assert " 0 wrong, " in lines[-1]


def test_a_wrong_library_is_no_success(dfa):
    # An engine that does not exist leaves nothing to check.
    done = dfa("selftest", env={"DFA_ISA": "nonsense"})
    assert done.returncode in (1, 2) and "nonsense" in done.stdout + done.stderr
