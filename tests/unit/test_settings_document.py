"""docs/settings.md is made from the declarations and is up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.settings.catalogue import ALL_GROUPS
from common.settings.declaration import settings_of
from common.settings.document import DOCUMENT, main, render


def test_every_setting_has_one_row_with_its_default_and_whether_it_is_live() -> None:
    rows = {line.split("`")[1]: line for line in render().splitlines() if line.startswith("| `--")}
    declared = [setting for group in ALL_GROUPS for setting in settings_of(group)]
    assert list(rows) == [setting.flag for setting in declared]
    assert rows["--spool-cap-bytes"].split(" | ")[1] == "`50 GiB`"
    assert [flag for flag, row in rows.items() if "*live*" in row] == [s.flag for s in declared if s.live]
    assert all(row.count(" | ") == 2 for row in rows.values())


def test_the_document_in_the_repository_is_up_to_date() -> None:
    assert main(["--check"], DOCUMENT) == 0, "run python -m common.settings.document"


def test_a_document_that_is_not_is_found_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "docs" / "settings.md"
    assert main(["--check"], document) == 1
    assert main([], document) == 0
    assert main(["--check"], document) == 0
    document.write_text(document.read_text().replace("50 GiB", "51 GiB"))
    assert main(["--check"], document) == 1
    assert "is not up to date" in capsys.readouterr().err
