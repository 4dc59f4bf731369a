"""What one message says: a text, or a list of parts of which only text can be had."""

from __future__ import annotations

from typing import Any

from producer.rows import RowError, kind_of

_TEXT_PARTS = ("text", "input_text", "output_text")
#: Parts of other kinds, by what they are to people.
_OTHER_PARTS = {
    **dict.fromkeys(("image", "image_url", "input_image", "image_asset_pointer"), "an image"),
    **dict.fromkeys(("audio", "audio_url", "input_audio"), "sound"),
    **dict.fromkeys(("video", "video_url"), "a video"),
    **dict.fromkeys(("file", "input_file", "document"), "a file"),
}


def content_text(where: str, content: Any) -> str:
    """Content as one text: a list of text parts is joined, None is empty."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RowError(f"{where}: content is {kind_of(content)}, not text")
    return "".join(_part_text(where, part) for part in content)


def _part_text(where: str, part: Any) -> str:
    text = part
    if isinstance(part, dict):
        text = part.get("text") if (part.get("type") or "text") in _TEXT_PARTS else None
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, dict) else kind_of(part)
        what = _OTHER_PARTS.get(kind) if isinstance(kind, str) else None
        named = f"{what}, a part" if what else "a part"
        raise RowError(f"{where}: content has {named} of type {str(kind)[:40]}; only text is supported")
    return text
