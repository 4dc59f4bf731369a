"""What the S3 store makes of answers that no S3 server gives: redirects, gateways' pages, replies that lack something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hiddenfeed.errors import ConfigError, MissingObjectError, PermanentError, TransientError
from hiddenfeed.options import StoreOptions
from hiddenfeed.store import Store, open_store
from tests.faults.scripted_faults import Fail, Fault, Foreign, Well
from tests.faults.scripted_s3 import ScriptedS3, Stored
from tests.faults.scripted_store import DATA, KEY, PLACE, opened, put

SMALL = DATA[:1000]
PAGE = b"<html><head><title>hello</title></head><body>hello</body></html>"
#: Not even well-formed, as most pages are.
UGLY = b"<html><br>hello"
OPERATIONS = ("PutObject", "CreateMultipartUpload", "HeadObject", "ListObjects", "GetObject", "HeadBucket")


def always(server: ScriptedS3, fault: Fault) -> None:
    for operation in OPERATIONS:
        server.always(operation, fault)


@pytest.fixture(params=["boto3 sends", "we send"])
def store(request: pytest.FixtureRequest, server: ScriptedS3, tmp_path: Path) -> Store:
    """One that has learned how to send a file, and one that has not."""
    store = opened(server)
    if request.param == "we send":
        put(store, tmp_path, SMALL, key="first")
    server.log.clear()
    return store


# --- redirects ---


@pytest.mark.parametrize(
    ("status", "location", "said"),
    [
        (301, "https://s3.example.org/bucket?token=secret", "to https://s3.example.org/bucket, which"),
        (302, "/login", "to /login, which"),
        (307, "/bucket/runs", "to /bucket/runs, which"),
        (308, "https://u:secret@s3.example.org/", "to https://s3.example.org/, which"),
        (303, "", "without saying where to"),
    ],
)
def test_a_redirect_elsewhere_is_one_sentence_that_names_it(
    server: ScriptedS3, store: Store, tmp_path: Path, status: int, location: str, said: str
) -> None:
    always(server, Foreign(status, b"", {"Location": location} if location else {}))
    for ask in (
        lambda: put(store, tmp_path, SMALL),
        store.check,
        lambda: store.head(KEY),
        lambda: put(store, tmp_path),
    ):
        server.log.clear()
        with pytest.raises(ConfigError, match=r"redirects .* with --s3-endpoint$") as caught:
            ask()
        assert said in str(caught.value)
        assert "secret" not in str(caught.value)
        assert len(server.log) <= 2, "it was followed, or its region asked for"


def test_a_redirect_to_another_region_is_followed(server: ScriptedS3, tmp_path: Path) -> None:
    store = opened(server)
    moved = b"<Error><Code>PermanentRedirect</Code><Message>elsewhere</Message></Error>"
    server.script("PutObject", Foreign(301, moved, {"x-amz-bucket-region": "eu-west-1"}))
    put(store, tmp_path, SMALL)
    assert server.objects[PLACE].data == SMALL
    regions = [headers["authorization"].split("/")[2] for headers in server.headers]
    assert regions[:2] == ["us-east-1", "eu-west-1"]


def test_a_redirect_that_leaves_the_region_to_be_asked_for_ends(server: ScriptedS3, tmp_path: Path) -> None:
    """The one who is asked redirects as well."""
    always(server, Fail(301, "PermanentRedirect"))
    with pytest.raises(ConfigError, match="in another region; set --s3-region"):
        put(opened(server), tmp_path, SMALL)
    assert server.log == ["PutObject", "HeadObject"], "HeadBucket is a HEAD as well"


# --- answers of gateways ---


def test_a_gateway_that_passes_is_tried_again(server: ScriptedS3, store: Store, tmp_path: Path) -> None:
    for status in (408, 425, 429, 499, 502, 520):
        for page in (PAGE, UGLY):
            server.always("PutObject", Foreign(status, page))
            with pytest.raises(TransientError, match=str(status)):
                put(store, tmp_path, SMALL)


#: Refusals, and what is said of each.
REFUSALS: list[tuple[Fault, str]] = [
    (Foreign(400, UGLY), "400 Bad Request without a reason of S3's; it may be no S3 server"),
    (Foreign(401, UGLY), r"does not allow it \(401 Unauthorized\)"),
    (Foreign(403, UGLY), "does not allow us to store"),
    (Foreign(403, PAGE), r"does not allow us to store|does not allow it \(403"),
    (Foreign(404, UGLY), "answers 404 Not Found; it may be no S3 server, or the bucket or path is wrong"),
    (Foreign(404, PAGE), "answers 404 Not Found; it may be no S3 server, or the bucket or path is wrong"),
    (Fail(404, "NoSuchKey"), "answers NoSuchKey: as scripted; it may be"),
    (Foreign(405, UGLY), r"does not allow it \(405 Method Not Allowed\); check --s3-endpoint"),
    (Fail(405, "MethodNotAllowed"), "does not allow it"),
    (Foreign(407, UGLY), "without a login at a proxy .* HTTPS_PROXY"),
    (Foreign(410, UGLY), "410 Gone without a reason"),
    (Foreign(413, UGLY), "no request as large as this .* --multipart-threshold-bytes"),
    (Fail(400, "EntityTooLarge"), "no request as large as that .* --multipart-threshold-bytes"),
    (Foreign(421, UGLY), "does not allow it"),
    (Fail(403, "QuotaExceeded"), "does not allow it .403 QuotaExceeded"),
    (Fail(400, "XMinioAdminBucketQuotaExceeded"), "does not allow it"),
]


def test_a_gateway_that_refuses_is_of_the_settings_and_said_to_be(
    server: ScriptedS3, store: Store, tmp_path: Path
) -> None:
    for fault, sentence in REFUSALS:
        server.always("PutObject", fault)
        server.log.clear()
        with pytest.raises(ConfigError, match=sentence) as caught:
            put(store, tmp_path, SMALL)
        assert "\n" not in str(caught.value)
        assert "no such object" not in str(caught.value)
        assert server.log == ["PutObject"]
    server.always("PutObject", Well())
    put(store, tmp_path, SMALL)


def test_what_s3_itself_refuses_stays_refused(server: ScriptedS3, store: Store, tmp_path: Path) -> None:
    server.always("PutObject", Fail(400, "InvalidArgument"))
    with pytest.raises(PermanentError, match="400 InvalidArgument: as scripted"):
        put(store, tmp_path, SMALL)


def test_an_object_that_is_gone_is_still_said_to_be(server: ScriptedS3) -> None:
    with pytest.raises(MissingObjectError):
        opened(server).read("run-1/nothing")


@pytest.mark.parametrize("page", [PAGE, b"", b"{}"], ids=["page", "nothing", "json"])
def test_a_web_server_that_welcomes_everything_is_no_store(server: ScriptedS3, page: bytes) -> None:
    server.always("ListObjects", Foreign(200, page))
    with pytest.raises((ConfigError, TransientError), match=f"{server.endpoint} ") as caught:
        opened(server).check()
    if page == PAGE:
        assert "does not answer like an S3 server" in str(caught.value)


# --- replies that lack something ---


@pytest.mark.parametrize(
    ("operation", "fault", "field"),
    [
        ("CreateMultipartUpload", Foreign(200, b"<InitiateMultipartUploadResult/>"), "without UploadId"),
        ("CreateMultipartUpload", Foreign(200, PAGE), "without UploadId"),
        ("CreateMultipartUpload", Foreign(200), "without UploadId"),
        ("UploadPart", Foreign(200), "without ETag"),
        ("HeadObject", Foreign(200, b"", {"Content-Length": "abc"}), "sent no reply of S3's"),
    ],
    ids=["no id", "page", "nothing", "no tag", "no number"],
)
def test_a_reply_that_lacks_something_is_transient_and_says_what(
    server: ScriptedS3, tmp_path: Path, operation: str, fault: Fault, field: str
) -> None:
    store = opened(server)
    put(store, tmp_path, key="first")
    server.always(operation, fault)
    with pytest.raises(
        TransientError, match=f"{server.endpoint} .*{field}|{field}.*{server.endpoint}"
    ) as caught:
        put(store, tmp_path)
    assert "\n" not in str(caught.value)
    server.always(operation, Well())
    put(store, tmp_path)
    assert server.objects[PLACE].data == DATA


def test_a_file_whose_put_is_answered_without_a_tag_is_looked_at_all_the_same(
    server: ScriptedS3, store: Store, tmp_path: Path
) -> None:
    server.script("PutObject", Foreign(200))
    with pytest.raises(TransientError, match="it is not there"):
        put(store, tmp_path, SMALL)
    put(store, tmp_path, SMALL)
    assert server.objects[PLACE].data == SMALL


@pytest.mark.parametrize(
    ("operation", "reply", "said"),
    [
        (
            "ListObjects",
            b"<ListBucketResult><Contents><Key>runs/a</Key></Contents></ListBucketResult>",
            "without Size",
        ),
        (
            "ListObjects",
            b"<ListBucketResult><Contents><Size>1</Size></Contents></ListBucketResult>",
            "without Key",
        ),
        (
            "ListObjects",
            b"<ListBucketResult><Contents><Size>x</Size></Contents></ListBucketResult>",
            "no reply of S3",
        ),
    ],
)
def test_a_list_that_lacks_something_is_transient(
    server: ScriptedS3, operation: str, reply: bytes, said: str
) -> None:
    server.always(operation, Foreign(200, reply))
    with pytest.raises(TransientError, match=said):
        list(opened(server).list(""))


def test_an_object_without_a_tag_is_not_read(server: ScriptedS3) -> None:
    server.objects[PLACE] = Stored(SMALL)
    server.always("HeadObject", Foreign(200, b"", {"Content-Length": "1000"}))
    with pytest.raises(TransientError, match=f"{server.endpoint} answered without ETag"):
        opened(server).read(KEY)


# --- keys ---


@pytest.mark.parametrize(
    ("operation", "fault"),
    [
        ("PutObject", Fail(403, "InvalidAccessKeyId")),
        ("PutObject", Fail(403, "SignatureDoesNotMatch")),
        ("PutObject", Fail(400, "InvalidToken")),
        ("PutObject", Fail(400, "ExpiredToken")),
        ("PutObject", Foreign(401, UGLY)),
        ("HeadObject", Foreign(403)),
        ("HeadObject", Foreign(400)),
    ],
)
def test_keys_that_are_replaced_are_found_after_any_refusal_of_the_old_ones(
    server: ScriptedS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, fault: Fault
) -> None:
    monkeypatch.setattr("hiddenfeed.store.s3_link._RENEW_SECONDS", 0.0)
    keys = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    keys.write_text("[lab]\naws_access_key_id = OLD\naws_secret_access_key = s\n")
    store = opened(server, s3_profile="lab")
    put(store, tmp_path, SMALL, key="first")
    server.always(operation, fault)
    with pytest.raises(ConfigError):
        put(store, tmp_path, SMALL)
    keys.write_text("[lab]\naws_access_key_id = NEW\naws_secret_access_key = s\n")
    server.always(operation, Well())
    server.headers.clear()
    put(store, tmp_path, SMALL)
    assert {headers["authorization"].split("Credential=")[1].split("/")[0] for headers in server.headers} == {
        "NEW"
    }


def test_a_refusal_that_is_not_of_the_keys_makes_no_new_client(server: ScriptedS3, tmp_path: Path) -> None:
    store: Any = opened(server)
    before = store._client
    server.script("PutObject", Fail(403, "AccessDenied"))
    with pytest.raises(ConfigError):
        put(store, tmp_path, SMALL)
    assert store._client is before


# --- settings ---


def test_an_empty_region_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"^--s3-region is empty"):
        open_store("s3://bucket/x", StoreOptions(s3_region=""))


def test_tls_to_a_server_without_it_names_the_other_address(server: ScriptedS3) -> None:
    endpoint = server.endpoint.replace("http:", "https:")
    options = StoreOptions(s3_endpoint=endpoint, s3_max_attempts=1)
    with pytest.raises(ConfigError, match=f"does not speak TLS .* set --s3-endpoint {server.endpoint}$"):
        open_store("s3://bucket/x", options).check()


def test_an_unfinished_upload_that_lacks_something_is_transient(server: ScriptedS3) -> None:
    listed = b"<ListMultipartUploadsResult><Upload><Key>runs/a</Key></Upload></ListMultipartUploadsResult>"
    server.always("ListMultipartUploads", Foreign(200, listed))
    store: Any = opened(server)
    with pytest.raises(TransientError, match="without UploadId"):
        list(store.unfinished_uploads())
