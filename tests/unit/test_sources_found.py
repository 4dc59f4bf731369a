"""What `--data` may name: files, patterns, folders, saved datasets, pipes, datasets of the hub."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hiddenfeed.errors import ConfigError
from producer.columns import Columns
from producer.parse_row import parse_row
from producer.rows import SourceRow, Text
from producer.sources import DataFile, RowReader, find_files
from producer.sources.files import hash_data
from producer.sources.hub import choose
from producer.sources.pattern import translate
from producer.sources.spooled import SpooledFile


def texts(files: list[DataFile]) -> list[str]:
    rows = [parse_row(row, Columns()) for row in RowReader(files, Columns())]
    return [
        row.content.text if isinstance(row, SourceRow) and isinstance(row.content, Text) else "-"
        for row in rows
    ]


def write(path: Path, *said: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": list(said)}), path)
    elif path.suffix == ".arrow":
        with pa.ipc.new_stream(path, pa.schema({"text": pa.string()})) as stream:
            stream.write_table(pa.table({"text": list(said)}))
    else:
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in said))
    return path


def found(data: Path | str) -> tuple[list[str], list[str]]:
    """(names of the files, what is said) of what is named."""
    said: list[str] = []
    return [file.name for file in find_files(str(data), say=said.append)], said


def test_a_folder_is_all_its_files_of_rows_in_natural_order(tmp_path: Path) -> None:
    for name in (
        "part-10.jsonl",
        "part-9.jsonl",
        "sub/a.parquet",
        ".hidden/b.jsonl",
        "dataset_info.json",
        "README.md",
    ):
        write(tmp_path / name, name)
    assert found(tmp_path) == (
        ["part-9.jsonl", "part-10.jsonl", "sub/a.parquet"],
        [f"{tmp_path}: 3 files of rows; not taken: .hidden/b.jsonl, README.md, dataset_info.json"],
    )
    assert texts(find_files(str(tmp_path))) == ["part-9.jsonl", "part-10.jsonl", "sub/a.parquet"]


def test_names_in_capitals_are_rows_too(tmp_path: Path) -> None:
    write(tmp_path / "A.JSONL", "a")
    write(tmp_path / "b.Parquet", "b")
    write(tmp_path / "C.JSON.GZ", "c")
    assert found(tmp_path)[0] == ["A.JSONL", "C.JSON.GZ", "b.Parquet"]


def test_separated_values_are_one_error_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "chats.CSV").write_text("role,content\nuser,hello\n")
    with pytest.raises(ConfigError, match=r"chats\.CSV is a file of separated values; write it as Parquet"):
        texts(find_files(str(tmp_path / "chats.CSV")))


def test_a_name_that_is_no_text_can_be_told(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.jsonl"))
    write(path, "a")
    assert [file.name for file in find_files(str(path))] == ["caf\\xe9.jsonl"]
    assert [file.name for file in find_files(str(tmp_path))] == ["caf\\xe9.jsonl"]
    assert texts(find_files(str(tmp_path))) == ["a"]


def test_a_folder_without_rows_says_what_it_has(tmp_path: Path) -> None:
    write(tmp_path / "notes.txt", "x")
    with pytest.raises(ConfigError, match=r"has no files of rows \(.*\); it has notes\.txt"):
        find_files(str(tmp_path))


def save(folder: Path, **shards: str) -> Path:
    """A dataset as `save_to_disk` writes it: shards that the state names in their order, beside what it caches."""
    for name, text in shards.items():
        write(folder / f"{name}.arrow", text)
    state = {
        "_data_files": [{"filename": f"{name}.arrow"} for name in shards],
        "_fingerprint": "0",
        "_split": "train",
    }
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def test_a_saved_dataset_is_what_its_state_says(tmp_path: Path) -> None:
    save(tmp_path, b="first", a="second")
    write(tmp_path / "cache-123.arrow", "not part of it")
    assert found(tmp_path) == (["b.arrow", "a.arrow"], [])
    assert texts(find_files(str(tmp_path))) == ["first", "second"]
    (tmp_path / "a.arrow").unlink()
    with pytest.raises(ConfigError, match=r"a\.arrow cannot be read: No such file"):
        find_files(str(tmp_path))


def test_of_a_saved_dataset_with_splits_the_training_one_is_taken(tmp_path: Path) -> None:
    save(tmp_path / "train", a="rows")
    save(tmp_path / "test", a="others")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert found(tmp_path) == (["train/a.arrow"], [f"{tmp_path}: split train is taken; not taken: test"])
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["test", "dev"]}')
    with pytest.raises(ConfigError, match=rf"has the splits test, dev: name one, like {tmp_path}/test"):
        find_files(str(tmp_path))
    assert texts(find_files(str(tmp_path / "test"))) == ["others"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("state.json", '{"_data_files": [{"filename": "../a.arrow"}]}', "names a file outside its folder"),
        ("state.json", '{"_data_files": 3}', "is not what datasets writes"),
        ("state.json", "{", "is not what datasets writes"),
        ("dataset_dict.json", '{"splits": ["../train"]}', "names a split outside its folder"),
        ("dataset_dict.json", '{"splits": []}', "has the splits none"),
    ],
)
def test_saved_datasets_that_are_none(tmp_path: Path, name: str, content: str, message: str) -> None:
    save(tmp_path, a="x")
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError) as caught:
        find_files(str(tmp_path))
    assert message in str(caught.value)


# --- pipes ---


def test_standard_input_is_read_as_often_as_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", "a", "b")
    with path.open("rb") as piped:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(piped))
        files = find_files("-")
    assert [(file.name, file.path) for file in files] == [("stdin", None)]
    assert texts(files) == texts(files) == ["a", "b"]
    assert hash_data(files) == hash_data(find_files(str(path)))
    assert files[0].state() == (path.stat().st_size, "")


def test_a_terminal_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    with pytest.raises(ConfigError, match="standard input, and that is a terminal"):
        find_files("-")


def test_a_pipe_with_a_path_is_read_once_and_kept(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=partial(write, tmp_path / "pipe", "a", "b"))
    writer.start()
    files = find_files(str(tmp_path / "pipe"))
    writer.join()
    assert isinstance(files[0], SpooledFile)
    assert texts(files) == texts(files) == ["a", "b"]


# --- names of other places ---


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("gs://bucket/x", "is neither a path nor s3://bucket/key nor hf://datasets/NAME"),
        ("s3://B/x", "'B' cannot be a bucket's name"),
        ("hf://models/x", "write hf://datasets/NAME"),
        ("nowhere/data.jsonl.gz", "--data nowhere/data.jsonl.gz is not there"),
        ("chats", "--data chats is not there"),
    ],
)
def test_names_that_lead_nowhere(data: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_files(data)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "fits", "fits_not"),
    [
        ("a/*.jsonl", ["a/b.jsonl"], ["a/b/c.jsonl", "a/b.jsonl.gz", "xa/b.jsonl"]),
        ("**/*.jsonl", ["b.jsonl", "a/b/c.jsonl"], ["b.json"]),
        ("a/part-[0-3]?.gz", ["a/part-31.gz"], ["a/part-41.gz", "a/part-3.gz"]),
        ("a[.json", ["a[.json"], ["a.json"]),
    ],
)
def test_patterns_where_there_is_no_file_system(pattern: str, fits: list[str], fits_not: list[str]) -> None:
    compiled = re.compile(translate(pattern))
    assert all(compiled.fullmatch(name) for name in fits)
    assert not any(compiled.fullmatch(name) for name in fits_not)


# --- the hub ---

NAMES = [
    "README.md",
    "data/train-0.parquet",
    "data/train-1.parquet",
    "data/test-0.parquet",
    "extra/all.jsonl",
]


@pytest.mark.parametrize(
    ("pattern", "configs", "expected"),
    [
        (None, None, ["data/train-0.parquet", "data/train-1.parquet"]),
        ("extra/*", None, ["extra/all.jsonl"]),
        (None, [{"config_name": "x", "data_files": "extra/*.jsonl"}], ["extra/all.jsonl"]),
        (
            None,
            [
                {"config_name": "x", "data_files": [{"split": "train", "path": "extra/*"}]},
                {"config_name": "default", "data_files": [{"split": "test", "path": "data/test-*"}, {"split": "train", "path": ["data/train-*"]}]},
            ],
            ["data/train-0.parquet", "data/train-1.parquet"],
        ),
    ],
)  # fmt: skip
def test_files_of_a_dataset_of_the_hub(pattern: str | None, configs: Any, expected: list[str]) -> None:
    said: list[str] = []
    assert choose("a/b", NAMES, pattern, configs, said.append) == expected
    if pattern is None and configs is None:
        assert said == ["dataset a/b: 2 files of split train taken, not taken: 2 others"]


def test_a_dataset_of_several_configurations_asks_for_one() -> None:
    configs = [{"config_name": name, "data_files": f"{name}/*"} for name in ("en", "de")]
    with pytest.raises(
        ConfigError, match="has the configurations en, de and no default: name the files of one"
    ):
        choose("a/b", NAMES, None, configs, lambda line: None)
    with pytest.raises(ConfigError, match=r"dataset a/b has no files x\*"):
        choose("a/b", NAMES, "x*", None, lambda line: None)


COMMIT = "0123456789abcdef0123456789abcdef01234567"
_SCRIPT = """
import json, sys
from hiddenfeed.errors import HiddenfeedError
from producer.sources import find_files
for data in sys.argv[1:]:
    said = []
    try:
        files = find_files(data, say=said.append)
        print(json.dumps([[file.name, file.path.read_text()] for file in files] + said))
    except HiddenfeedError as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


class Hub(BaseHTTPRequestHandler):
    """A hub with one dataset, as far as its client asks."""

    FILES: ClassVar[dict[str, bytes]] = {
        "data/train.jsonl": b'{"text": "a"}\n',
        "data/test.jsonl": b"",
        "README.md": b"",
    }

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def _answer(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        name = re.sub(f"^/datasets/org/chats/resolve/(main|{COMMIT})/", "", path)
        if path.startswith("/api/datasets/org/chats"):
            described = {
                "id": "org/chats",
                "sha": COMMIT,
                "siblings": [{"rfilename": name} for name in self.FILES],
            }
            self._send(200, json.dumps({**described, "tags": [], "downloads": 0}).encode(), body=body)
        elif name in self.FILES:
            self._send(200, self.FILES[name], body=body)
        else:
            self._send(404, b"", body=body, error="RepoNotFound")

    def _send(self, status: int, data: bytes, *, body: bool, error: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{len(data):040x}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if error:
            self.send_header("X-Error-Code", error)
        self.end_headers()
        if body:
            self.wfile.write(data)


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_dataset_of_the_hub_is_fetched_at_its_commit_and_found_again_without_it(
    hub: str, tmp_path: Path
) -> None:
    def ask(*data: str, **environment: str) -> list[Any]:
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, *data],
            env={**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1", **environment},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    fetched, missing = ask("org/chats", "org/other", HF_ENDPOINT=hub)
    assert fetched == [
        ["data/train.jsonl", '{"text": "a"}\n'],
        "looking for dataset org/chats on the hub and in the local cache",
        "dataset org/chats: 1 file of split train taken, not taken: 1 other",
        "dataset org/chats at 0123456789ab: 1 file",
    ]
    assert missing[0] == "ConfigError"
    assert "dataset org/other is neither a file or folder here nor a dataset on the hub" in missing[1]
    again, unknown = ask("org/chats", "org/unknown", HF_HUB_OFFLINE="1")
    assert again[0] == ["data/train.jsonl", '{"text": "a"}\n']
    assert "from the local cache, which may lack files: 1 file" in again[-1]
    assert unknown[0] == "ConfigError"
    assert "HF_HUB_OFFLINE forbids asking the hub" in unknown[1]
    refused = "http://127.0.0.1:9"
    cached, away = ask("org/chats", "org/unknown", HF_ENDPOINT=refused)
    assert cached[0] == ["data/train.jsonl", '{"text": "a"}\n']
    assert f"the hub ({refused}) does not answer" in cached[2]
    assert away[0] == "TransientError"
    assert "the hub cannot be reached: try again when it can, or give a local file or folder" in away[1]
