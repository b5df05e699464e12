"""Random log lines, made of words and of values that templates mask."""

from __future__ import annotations

from hypothesis import strategies as st

PIECES = st.sampled_from(
    [
        *(
            "12",
            "0x7f",
            "12.5ms",
            "10.0.0.1",
            "a1b2c3",
            "fe80::1",
            "deadbeef",
            "Nov 3",
            "µs",
            "٣",
            "word",
            "don't",
        ),
        *(
            '"',
            "'",
            "\\",
            '\\"',
            "<*>",
            "<*",
            "=",
            ":",
            "{",
            "}",
            "[",
            "]",
            ", ",
            " ",
            "  ",
            "\n",
            "-",
            "_",
            ".",
            "/",
        ),
        *("@x.io", '"msg":"', "key=", "eyJ", "x==", "é", "🎉", "…", "\x00", "\x1f"),
    ]
)
LINE = st.one_of(
    st.text(), st.lists(PIECES, max_size=25).map("".join), st.text("0123456789abcf:-._ \"'", max_size=60)
)
