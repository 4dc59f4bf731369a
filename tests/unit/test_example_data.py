"""The conversations that the demo runs over."""

from __future__ import annotations

import json

from standalone.demo import data_file


def test_shipped_conversations_are_many_different_and_well_formed() -> None:
    rows = [json.loads(line) for line in data_file().read_text(encoding="utf-8").splitlines()]
    assert len(rows) >= 600
    assert len({row["id"] for row in rows}) == len(rows)
    assert len({json.dumps(row["messages"]) for row in rows}) == len(rows)
    for row in rows:
        roles = [message["role"] for message in row["messages"]]
        assert len(roles) >= 2
        assert roles == (["user", "assistant"] * len(roles))[: len(roles)]
        assert all(message["content"].strip() for message in row["messages"])


def test_their_licence_lies_beside_them() -> None:
    text = (data_file().parent / "LICENSE").read_text(encoding="utf-8")
    assert "Copyright (c) 2017, Gunther Cox" in text
    assert "Redistributions in binary form must reproduce" in text
