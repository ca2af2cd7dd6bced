#!/usr/bin/env python3
"""tools/release.py on a made-up tree: the cut, the notes, the sums."""
import hashlib
import importlib.util
import pathlib
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("release", ROOT / "tools/release.py")
release = importlib.util.module_from_spec(spec)
spec.loader.exec_module(release)


def tree(folder, changes):
    (folder / "include/dfa").mkdir(parents=True)
    (folder / "include/dfa/version.h").write_text((ROOT / "include/dfa/version.h").read_text())
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n## [Unreleased]\n{changes}")
    return folder


def refused(words, function, *arguments):
    try:
        function(*arguments)
    except ValueError as error:
        assert words in str(error), error
        return
    raise AssertionError(f"not refused: {arguments}")


def a_cut_moves_the_changes_and_the_version(folder):
    root = tree(folder, "\n### Added\n\n- One.\n")
    assert release.notes(root) == "### Added\n\n- One.\n"
    release.cut(root, "9.1.0", "2030-01-02")
    assert (root / "CHANGELOG.md").read_text() == "# Changelog\n\n## [Unreleased]\n\n## [9.1.0] - 2030-01-02\n\n### Added\n\n- One.\n"
    assert release.version_of(root) == "9.1.0"
    assert release.notes(root) == "### Added\n\n- One.\n"
    refused("nothing stands under", release.cut, root, "9.2.0", "2030-01-03")
    text = (root / "CHANGELOG.md").read_text()
    (root / "CHANGELOG.md").write_text(text.replace("[Unreleased]\n", "[Unreleased]\n\n- Two.\n"))
    refused("not after 9.1.0", release.cut, root, "9.1.0", "2030-01-03")
    refused("'9.2'; accepted", release.cut, root, "9.2", "2030-01-03")


def the_real_changelog_can_be_cut(folder):
    root = tree(folder, "")
    (root / "CHANGELOG.md").write_text((ROOT / "CHANGELOG.md").read_text())
    release.cut(root, "99.0.0", "2030-01-02")
    assert "- " in release.notes(root)


def sums_are_those_of_sha256sum(folder):
    (folder / "b.whl").write_bytes(b"b")
    (folder / "a.tar.gz").write_bytes(b"a")
    release.sums(folder)
    release.sums(folder)  # its own file is not counted
    wanted = "".join(f"{hashlib.sha256(name[:1].encode()).hexdigest()}  {name}\n" for name in ("a.tar.gz", "b.whl"))
    assert (folder / "SHA256SUMS").read_text() == wanted


def main():
    for test in (a_cut_moves_the_changes_and_the_version, the_real_changelog_can_be_cut, sums_are_those_of_sha256sum):
        with tempfile.TemporaryDirectory() as folder:
            test(pathlib.Path(folder))
    print("release: cut, notes, sums")


if __name__ == "__main__":
    main()
