"""Turns result files of `dfa bench` into figures and one self-contained HTML page.

    python3 -m dfa.report RESULT… --out DIR
"""
