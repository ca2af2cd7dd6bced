"""Every type of the table in docs/guide/transformers-models.md: right, or refused by name; never other numbers."""

import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers_models as models  # noqa: E402

TYPES = [(title, name) for title, (kinds, _) in models.CASES.items() for name in kinds]
REFUSED = set()
OWN = {"gpt_neo", "falcon", "bloom", "mpt", "xglm", "mpnet", "deberta-v2", "roformer", "mvp"}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("title, name", TYPES, ids=[name for _, name in TYPES])
def test_a_type(title, name):
    kinds, cases = models.CASES[title]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        came = models.outcomes(*kinds[name], cases)
    allowed = {"refused", "none"} if name in REFUSED else {"own"} if name in OWN else {"right", "none"}
    assert {case: outcome for case, outcome in came.items() if outcome[0] not in allowed} == {}
    if name not in REFUSED | OWN:
        assert sum(what == "right" for what, _ in came.values()) >= len(cases) - 3
