"""Columns of numbers read the same on every machine."""

import pytest

from holdfast.core.journal import FLOAT32, UINT16, UINT32, pack, unpack


@pytest.mark.parametrize(
    ("kind", "values", "little_endian"),
    [
        (FLOAT32, (0.0, 1.5, -2.25), "000000000000c03f000010c0"),
        (UINT16, (0, 1, 65535), "00000100ffff"),
        (UINT32, (0, 7, 2**32 - 1), "0000000007000000ffffffff"),
        (UINT16, (), ""),
    ],
)
def test_a_column_is_little_endian_and_comes_back(kind: str, values: tuple[float, ...], little_endian: str) -> None:
    assert pack(kind, values).hex() == little_endian
    assert unpack(kind, bytes.fromhex(little_endian)) == values
