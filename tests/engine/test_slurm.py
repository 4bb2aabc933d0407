"""The job script of docs/cluster.md, with a `srun` and a `scontrol` that do on this machine what those of SLURM do."""
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import ENVIRONMENT, ROOT, TINY, load
from together import MODEL, write_data

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name == "nt", reason="a shell")]
STUBS = {
    "srun": """#!{python}
import os, subprocess, sys
tasks = [subprocess.Popen(sys.argv[1:], env={{**os.environ, "SLURM_PROCID": str(number), "SLURM_LOCALID": str(number)}})
         for number in range(int(os.environ["SLURM_NTASKS"]))]
sys.exit(max(task.wait() for task in tasks))
""",
    "scontrol": """#!/bin/sh
if [ "$1" = show ]; then echo "$3"; else echo "$@" > scontrol.said; fi
""",
    "lmp_trainer": """#!/bin/sh
exec {python} -m lmplay.train "$@" {flags}
""",
}


def test_a_job_that_has_to_stop_saves_and_is_queued_again(tmp_path):
    write_data(tmp_path)
    (tmp_path / "plan.json").rename(tmp_path / "my_plan.json")
    (tmp_path / "bin").mkdir()
    for name, text in STUBS.items():
        program = tmp_path / "bin" / name
        program.write_text(text.format(python=sys.executable, flags=" ".join([*TINY, "--batch-size", "5", "--max-steps", "2"])))
        program.chmod(0o755)
    (script,) = [block for block in re.findall("```bash\n(.*?)```", (ROOT / "docs/cluster.md").read_text(), re.DOTALL) if "srun bash" in block]
    with socket.create_server(("127.0.0.1", 0)) as server:
        script = script.replace("29400", str(server.getsockname()[1]))
    job = {"SLURM_JOB_NODELIST": "127.0.0.1", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "1234", "SLURM_JOB_END_TIME": str(int(time.time()) + 3600)}
    environment = {**ENVIRONMENT, **job, "HOME": str(tmp_path), "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert Path(tmp_path, "scontrol.said").exists(), (done.stdout, done.stderr)
    assert Path(tmp_path, "scontrol.said").read_text() == "requeue 1234\n"
    assert done.stdout.count("stopped (--max-steps 2)") == 1
    assert load(tmp_path / "runs" / MODEL)["runner"]["state_args"]["settings"]["amp"]
