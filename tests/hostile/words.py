"""Strings that end a C++ string, a comment, a raw string, a shell word, a ninja line or a path."""

from __future__ import annotations

from pathlib import Path


def hostile_strings(marker: Path) -> list[str]:
    """`marker` is the file that their code would make."""
    call = f'extern "C" int system(const char*); const int kRan = system("touch {marker}");'
    return [
        (
            f'x", "gemm", 2, 1, 1, "", "", 0, false, false, false}}}}; {call} constexpr Op'
            ' kRest[] = {{"y'
        ),
        f')json"; {call} constexpr char kRest[] = R"json(',
        f"*/ {call} /*",
        f"x\n{call}\n//",
        f"x\\\n{call}",
        f"$(touch {marker})",
        f"`touch {marker}`",
        f"; touch {marker} ;",
        f"x\n  command = touch {marker}\n",
        f"'; touch {marker}; '",
        "{{ 7 * 7 }}",
        "{% raw %}",
        "../../escape",
        "/dev/null",
        "-Xcompiler=-fplugin=evil.so",
        "@response",
        "",
        " ",
        "a b",
        "x\0y",
        "\x1b]0;title\x07",
        "\u202e",
        "x" * 2000,
        "ÿ",
        "٣",
        "\ud800",
    ]
