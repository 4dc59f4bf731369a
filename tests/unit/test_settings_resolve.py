"""Settings: one declaration, three sources, clear refusals."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec
import pytest

from common.settings.catalogue import ALL_GROUPS, RedisSettings, SpoolSettings, StoreSettings, UploadSettings
from common.settings.declaration import settings_of
from common.settings.resolve import add_flags, resolve
from hiddenfeed.errors import ConfigError
from hiddenfeed.sizes import parse_size, shown_size

REPOSITORY = Path(__file__).parents[2]


def test_every_setting_has_a_unique_name_and_help() -> None:
    settings = [setting for group in ALL_GROUPS for setting in settings_of(group)]
    names = [setting.name for setting in settings]
    assert len(set(names)) == len(names)
    assert [setting.name for setting in settings if not setting.help] == []


def test_quantities_carry_their_unit_in_the_name() -> None:
    for group in ALL_GROUPS:
        for setting in settings_of(group):
            if setting.type.unit in ("bytes", "s"):
                ending = {"bytes": "_bytes", "s": "_seconds"}[setting.type.unit]
                assert setting.name.endswith(ending), setting.name


def test_flag_beats_environment_beats_default_and_the_source_is_known() -> None:
    environ = {"HIDDENFEED_UPLOAD_PARALLELISM": "100", "HIDDENFEED_SPOOL": "nvme"}
    resolved = resolve([UploadSettings, SpoolSettings], {"upload_parallelism": "500"}, environ)
    assert resolved.group(UploadSettings).upload_parallelism == 500
    assert resolved.sources["upload_parallelism"] == "flag --upload-parallelism"
    assert resolved.group(SpoolSettings).spool == "nvme"
    assert resolved.sources["spool"] == "environment HIDDENFEED_SPOOL"
    assert resolved.sources["spool_dir"] == "default"
    assert resolved.group(SpoolSettings).spool_dir == SpoolSettings().spool_dir


def test_an_empty_variable_counts_as_not_set() -> None:
    resolved = resolve([UploadSettings], {}, {"HIDDENFEED_UPLOAD_PARALLELISM": ""})
    assert resolved.sources["upload_parallelism"] == "default"


def test_flags_are_made_from_the_declaration() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, ALL_GROUPS)
    parsed = parser.parse_args(["--store", "s3://b/p", "--spool-cap-bytes", "3GiB", "--detach"])
    resolved = resolve(ALL_GROUPS, vars(parsed) | {"data": "d", "model": "m"}, {})
    assert resolved.values["spool_cap_bytes"] == 3 * 2**30
    assert resolved.values["detach"] is True
    assert "HIDDENFEED_SPOOL_CAP_BYTES" in parser.format_help()


@pytest.mark.parametrize(
    ("given", "environ", "message"),
    [
        ({"upload_parallelism": "many"}, {}, r"^--upload-parallelism 'many' cannot be used"),
        ({"upload_parallelism": "0"}, {}, r"it takes a whole number from 1 to 5000"),
        ({}, {"HIDDENFEED_UPLOAD_PARALLELISM": "9999"}, r"^HIDDENFEED_UPLOAD_PARALLELISM '9999' cannot"),
        (
            {},
            {"HIDDENFEED_UPLOAD_PARALELISM": "5"},
            r"unknown setting .* HIDDENFEED_UPLOAD_PARALELISM; did you mean HIDDENFEED_UPLOAD_PARALLELISM\?",
        ),
        ({}, {"HIDDENFEED_ZZZ": "5"}, r"unknown setting in the environment: HIDDENFEED_ZZZ$"),
    ],
)
def test_a_wrong_value_is_refused_by_name(
    given: dict[str, Any], environ: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve([UploadSettings], given, environ)


def test_a_missing_required_setting_names_flag_and_variable() -> None:
    with pytest.raises(ConfigError, match=r"--store \(or HIDDENFEED_STORE\) must be given"):
        resolve([StoreSettings], {}, {})


def test_the_password_in_a_url_is_not_shown() -> None:
    resolved = resolve([RedisSettings], {"redis_url": "redis://user:secret@host:6379/0"}, {})
    shown = {name: value for name, value, _ in resolved.table()}
    assert shown["redis_url"] == "redis://user:***@host:6379/0"


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("512MiB", 2**29), ("2 GB", 2 * 10**9), ("1.5g", 1_500_000_000), ("3TiB", 3 * 2**40)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "12 parsecs"])
def test_a_bad_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a size is a number"):
        parse_size(text)


def test_sizes_are_shown_short() -> None:
    assert [shown_size(n) for n in (5, 2048, 2**29, 3 * 2**29)] == ["5 B", "2 KiB", "512 MiB", "1.5 GiB"]


def test_groups_are_frozen_and_refuse_unknown_fields() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.convert({"upload_paralelism": 3}, UploadSettings)
    with pytest.raises(AttributeError):
        UploadSettings().upload_parallelism = 3  # type: ignore[misc]


@pytest.mark.parametrize("path", ["deploy/compose/demo.env", ".env.example"])
def test_env_files_hold_only_settings_that_exist_with_values_that_are_valid(path: str) -> None:
    lines = (REPOSITORY / path).read_text().splitlines()
    pairs = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    resolved = resolve(ALL_GROUPS, {}, pairs)
    assert resolved.values["store"] == pairs["HIDDENFEED_STORE"]
