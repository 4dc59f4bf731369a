"""Every setting refuses what it is not, in words for people: its name, what was given, what it takes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from common.settings.catalogue import ALL_GROUPS, DataSettings
from common.settings.declaration import Setting, settings_of
from common.settings.resolve import resolve
from hiddenfeed.errors import ConfigError
from hiddenfeed.setting_type import setting_type
from hiddenfeed.words import nearest_text

SETTINGS = {setting.name: setting for group in ALL_GROUPS for setting in settings_of(group)}
#: Those that not every text is a value of.
PARTICULAR = {
    name: setting
    for name, setting in SETTINGS.items()
    if setting.type.kind != "str" or setting.type.choices or "form" in setting.type.extra
}


def refusal(name: str, raw: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve([SETTINGS[name].group], {name: raw}, {}, complete=False)
    return str(caught.value)


@pytest.mark.parametrize("name", PARTICULAR)
def test_nonsense_is_refused_in_our_words(name: str) -> None:
    setting = SETTINGS[name]
    text = refusal(name, "%&!")
    assert text.startswith(f"{setting.flag} '%&!' cannot be used: it takes ")
    assert setting.type.allowed != "text"
    assert text.endswith(setting.type.allowed)
    # Nothing of msgspec's own words, and nothing of a pattern.
    assert not re.search(r"Expected|Invalid|regex|`|>=|<=|\^|\$", text)


@pytest.mark.parametrize("name", [n for n, s in SETTINGS.items() if s.type.least or s.type.most])
def test_limits_are_allowed_and_what_is_beyond_them_names_them(name: str) -> None:
    setting = SETTINGS[name]
    for limit, beyond in ((setting.type.least, -1), (setting.type.most, 1)):
        if limit is None:
            continue
        raw = str(int(limit))
        assert resolve([setting.group], {name: raw}, {}, complete=False).values[name] == limit
        if int(limit) + beyond >= 0:
            assert setting.type.allowed in refusal(name, str(int(limit) + beyond))


@pytest.mark.parametrize("name", [n for n, s in SETTINGS.items() if s.type.kind == "float"])
@pytest.mark.parametrize("raw", ["nan", "inf", "1,5", "0"])
def test_what_is_no_number_of_anything_is_refused(name: str, raw: str) -> None:
    assert "it takes a number" in refusal(name, raw)


@pytest.mark.parametrize(
    ("name", "raw", "said"),
    [
        ("loss_mask", "lastturn", "it takes assistant, last-turn, all or template:FILE; did you mean last-turn?"),
        ("loss_mask", "template", "; did you mean template:FILE?"),
        ("dtype", "BFLOAT16", "it takes bfloat16, float16 or float32; did you mean bfloat16?"),
        ("dtype", "int8", "it takes bfloat16, float16 or float32"),
        ("max_length", "0", "it takes a whole number of tokens, 1 or more"),
        ("max_length", "4k", "it takes a whole number of tokens, 1 or more"),
        ("max_length", "4_096", "it takes a whole number of tokens, 1 or more"),
        ("prepare_processes", "65", "it takes a whole number from 0 to 64"),
        ("upload_parallelism", "5001", "it takes a whole number from 1 to 5000"),
        ("lease_seconds", "2", "it takes a whole number of seconds, 3 or more"),
        ("retry_base_seconds", "0", "it takes a number of seconds above 0"),
        ("spool_low_percent", "101", "it takes a whole number of percent from 1 to 100"),
        ("spool_cap_bytes", "1KB", "it takes a size such as 512MiB or 50GB, 1 MiB or more"),
        ("upload_bandwidth_bytes", "fast", "it takes a size for each second such as 512MiB or 50GB"),
        ("spool", "my spool", "it takes letters, digits, _ and -, 60 of them at most"),
        ("dashboard_url", "example.org", "it takes an address that begins with http:// or https://"),
        ("detach", "maybe", "it takes yes or no"),
        ("max_length", "x" * 200, f"'{'x' * 80}' cannot be used"),
    ],
)  # fmt: skip
def test_what_is_allowed_is_said(name: str, raw: str, said: str) -> None:
    text = refusal(name, raw)
    assert said in text
    assert text.endswith(said) or len(raw) > 80


def test_the_variable_is_named_where_it_was_one() -> None:
    with pytest.raises(ConfigError, match=r"^HIDDENFEED_MAX_LENGTH '0' cannot be used: it takes a whole"):
        resolve([DataSettings], {}, {"HIDDENFEED_MAX_LENGTH": "0"}, complete=False)


def test_choices_and_texts_are_taken_as_they_are() -> None:
    resolved = resolve(
        [DataSettings], {"name": "null", "loss_mask": "template:a b.jinja"}, {}, complete=False
    )
    assert (resolved.values["name"], resolved.values["loss_mask"]) == ("null", "template:a b.jinja")
    # In the order in which they are declared, which is the order that helps.
    assert SETTINGS["final_state"].type.choices == ("none", "pre", "post")


@pytest.mark.parametrize(
    ("raw", "value"), [("yes", True), ("ON", True), ("0", False), (" no ", False), (True, True)]
)
def test_yes_and_no(raw: Any, value: bool) -> None:
    assert SETTINGS["detach"].type.value(raw, "--detach") is value


def test_a_secret_is_not_repeated() -> None:
    with pytest.raises(ConfigError, match=r"^--token cannot be used: it takes a whole number$"):
        setting_type(int).value("hunter2", "--token", secret=True)


def test_values_are_shown_with_their_unit() -> None:
    shown = {name: setting.type.shown(setting.default) for name, setting in SETTINGS.items()}
    assert (shown["min_length"], shown["max_length"]) == ("1 token", "4096 tokens")
    assert (shown["s3_read_timeout_seconds"], shown["s3_min_bytes_per_second"]) == ("60 s", "256 KiB/s")
    assert (shown["tokens_per_second"], shown["upload_bandwidth_bytes"]) == ("10000 tokens/s", "0 B/s")
    assert (shown["detach"], shown["name"], shown["columns"]) == ("no", "not set", "not set")


def test_what_was_meant() -> None:
    assert nearest_text("Last_Turn", ["assistant", "last-turn"]) == "; did you mean last-turn?"
    assert nearest_text("zebra", ["assistant", "last-turn"]) == ""


def test_every_limit_of_a_declaration_is_known() -> None:
    """A declaration with a limit that the words leave out would refuse what they allow."""
    for setting in SETTINGS.values():
        _only_known_limits(setting)


def _only_known_limits(setting: Setting) -> None:
    text = repr(setting.type.declared)
    assert not re.search(r"\b(lt|multiple_of|min_length|max_length)=", text), setting.name
    if "pattern=" in text:
        assert setting.type.choices or "form" in setting.type.extra, setting.name
