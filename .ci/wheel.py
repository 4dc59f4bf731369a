"""What the library's wheel must be: all of the library, nothing else, and of use with its own dependencies alone.

python .ci/wheel.py dist/hiddenfeed-0.1.0-py3-none-any.whl
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Of the project's other dependencies none may be needed to read a run in a folder.
HIDDEN = ("boto3", "botocore", "redis", "rq", "torch", "transformers", "safetensors", "rich")
#: Runs outside of the checkout, on the unpacked wheel: a run that is there, read in every way.
SCRIPT = f"""
import sys
sys.modules.update(dict.fromkeys({HIDDEN}))
import hiddenfeed, hiddenfeed.cli
assert hiddenfeed.__file__.startswith(sys.argv[1]), hiddenfeed.__file__
for name in hiddenfeed.__all__:
    getattr(hiddenfeed, name)
run = hiddenfeed.open_run(sys.argv[2])
assert sum(len(batch.lengths) for batch in hiddenfeed.TrainingBatches(run)) == len(run) > 0
for command in ("show", "verify"):
    assert hiddenfeed.cli.main([command, sys.argv[2]]) == 0
# Of S3 it says what is missing.
assert hiddenfeed.cli.main(["show", "s3://bucket/runs"]) == 2
"""


def main(wheel: Path) -> None:
    """Raises AssertionError or CalledProcessError for a wheel that is not as it must be."""
    tracked = subprocess.run(
        ["git", "ls-files", "hiddenfeed"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        found = {name for name in names if not name.split("/")[0].endswith(".dist-info")}
        # The roles' names belong to other packages on the index.
        assert found == set(tracked), f"the wheel and hiddenfeed/ differ in {sorted(found ^ set(tracked))}"
        (entry,) = (name for name in names if name.endswith("entry_points.txt"))
        assert "hiddenfeed = hiddenfeed.cli:main" in archive.read(entry).decode()
        archive.extractall(Path(folder, "wheel"))
        run = _little_run(Path(folder, "runs"))
        subprocess.run(
            [sys.executable, "-P", "-c", SCRIPT, folder, run],
            cwd=folder,
            env={"PYTHONPATH": f"{folder}/wheel"},
            check=True,
        )
    print(f"wheel: {wheel} holds hiddenfeed, {len(found)} files, and works by itself")


def _little_run(folder: Path) -> str:
    """A complete run in a folder, made by the tests' own means."""
    made = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path; from hiddenfeed.proof import finish\n"
            "from hiddenfeed.store.directory import DirectoryStore\n"
            "from tests.synthetic_run import synthetic_run\n"
            "store, run = DirectoryStore(Path(sys.argv[1])), synthetic_run()\n"
            "store.check(create=True)\n"
            "run.write(store); finish(store, run.run_id); print(f'{store.url}/{run.run_id}')",
            str(folder),
        ],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return made.stdout.strip()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
