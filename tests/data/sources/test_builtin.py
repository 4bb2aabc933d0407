"""The built-in corpus as a source."""
from __future__ import annotations

import json

import pytest
from files import opened, refused

from lmplay.data.sources import IndexedSource


def test_builtin_tales(folder):
    source = opened("builtin:tales", folder)
    assert isinstance(source, IndexedSource)
    assert (source.n_rows, source.columns, source.name) == (None, ("title", "text", "nats"), "tales-1")
    assert set(source[10**9]) == set(source.columns)
    assert source[3] == opened("builtin:tales/1?seed=0", folder)[3] != opened("builtin:tales?seed=5", folder)[3]
    assert source.fingerprint == opened("builtin:tales/1", folder).fingerprint
    others = [opened(f"builtin:{path}", folder) for path in ("tales/2", "tales/1?seed=5", "tales/2?seed=5")]
    assert [other.name for other in others] == ["tales-2", "tales-1 seed 5", "tales-2 seed 5"]
    assert len({json.dumps(one.fingerprint) for one in (source, *others)}) == 4
    assert opened("builtin:tales", folder, "validation") is None
    with pytest.raises(IndexError):
        source[-1]


@pytest.mark.parametrize(("path", "says"), [("builtin:tails", "Did you mean 'builtin:tales'?"), ("builtin:tales/99", "builtin:sums, with ?seed=NUMBER"),
                                            ("builtin:tales/x", "builtin:tales/4"), ("builtin:tales?seed=x", "?seed=NUMBER")])
def test_unknown_corpora_are_refused(folder, path, says):
    refusal = refused(path, folder)
    assert f'found "{path}", allowed: builtin:tales, builtin:tales/1' in refusal
    assert says in refusal


def test_a_corpus_has_no_splits_and_no_configs(folder):
    for keys in ({"split": "train"}, {"config": "en"}, {"revision": "v1"}):
        assert f"'{next(iter(keys))}' is for data sets of the hub" in refused("builtin:tales", folder, **keys)
