"""What stands in an output file, and back: JSON with a line end, or the plain text of a JSON string."""

import msgspec

from holdfast.core import canonical


def encode_content(output: bytes, *, is_json: bool) -> tuple[bytes, bool]:
    """The bytes for the file, and whether they are plain text. `is_json`: the file's name promises JSON."""
    text = None if is_json else _plain_text(output)
    return (output + b"\n", False) if text is None else (text, True)


def decode_content(data: bytes, *, is_text: bool) -> bytes:
    """The JSON bytes of the output: exactly those that `encode_content` was given. A file of somebody else's may do
    without the line end."""
    if is_text:
        return canonical.encode(data.decode("utf-8"))
    return data.removesuffix(b"\n")


def _plain_text(output: bytes) -> bytes | None:
    """The text of a JSON string; None for other values, and for a spelling that would not come back."""
    if not output.startswith(b'"'):
        return None
    try:
        text = canonical.decode(output)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return text.encode("utf-8") if canonical.encode(text) == output else None
