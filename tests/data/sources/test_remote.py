"""A file of the hub: errors that no waiting mends."""

import pytest
from hub_rows import hub_set

from lmplay.errors import UserError


@pytest.mark.parametrize(("status", "says"), [(404, "the hub does not have it"), (403, "access is refused"), (401, "access is refused")])
def test_what_waiting_cannot_mend_is_said_at_once(server, tmp_path, said, status, says):
    for form, file in (("parquet", "data/train-00003-of-00004.parquet"), ("lines", "train-3.jsonl")):
        source = hub_set(f"o/{form}", tmp_path)
        server.fault(file, status=status, times=None)
        stream, rows = source.open(), []
        with pytest.raises(UserError, match=rf"source o/{form}: {file}: {says} \(HTTP {status}\)"):
            rows += iter(stream.__next__, None)
    assert not said
