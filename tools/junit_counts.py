#!/usr/bin/env python3
"""Prints "passed failed skipped" of a JUnit file, as ctest and pytest write it.

Usage: tools/junit_counts.py FILE
"""
import sys
import xml.etree.ElementTree as tree


def counts(path):
    passed = failed = skipped = 0
    for case in tree.parse(path).iter("testcase"):
        tags = {child.tag for child in case}
        if tags & {"failure", "error"} or case.get("status") == "fail":
            failed += 1
        elif "skipped" in tags or case.get("status") in ("notrun", "disabled"):
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


if __name__ == "__main__":
    print(*counts(sys.argv[1]))
