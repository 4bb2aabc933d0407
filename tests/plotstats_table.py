"""The table of lmp_plotstats."""
import json

from lmplay.plotstats.__main__ import main


def table_of(capsys, folder, *arguments):
    """Give the runs of a folder as `--json` has them."""
    assert main(["--out-dir", str(folder), "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)
