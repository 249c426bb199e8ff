"""Draw how the stages are built on each other, as an SVG picture for dark and light pages."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from scripts.house import levels
from toolchain.catalog.stages import STAGES

_STYLE = (
    "<style>"
    "text{font:14px system-ui,sans-serif;fill:#24292f}.s{font-size:12px;fill:#57606a}"
    "rect{fill:#f6f8fa;stroke:#57606a;rx:6}.k{fill:#ddf4ff;stroke:#0969da}"
    ".b{fill:#fff}path{fill:none;stroke:#57606a;stroke-width:1.5}.h{fill:#57606a;stroke:none}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.s{fill:#9ea7b3}rect{fill:#21262d;stroke:#8b949e}"
    ".k{fill:#0c2d6b;stroke:#58a6ff}path{stroke:#8b949e}.h{fill:#8b949e}.b{fill:#0d1117}}"
    "</style>"
)
_WIDE, _HIGH, _GAP = 150, 46, 40


def _picture(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-label="{escape(title)}">\n<title>{escape(title)}</title>\n{_STYLE}\n'
        f'<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path class="h" d="M0 0L8 4L0 8z"/></marker></defs>\n'
        f'<rect class="b" x="0" y="0" width="{width}" height="{height}" style="stroke:none"/>\n{body}\n</svg>\n'
    )


def _box(x: int, y: int, text: str, small: str = "", *, kind: str = "", width: int = _WIDE) -> str:
    name = f' class="{kind}"' if kind else ""
    middle = x + width // 2
    lines = f'<text x="{middle}" y="{y + (20 if small else 28)}" text-anchor="middle">{escape(text)}</text>'
    if small:
        lines += f'<text class="s" x="{middle}" y="{y + 37}" text-anchor="middle">{escape(small)}</text>'
    return f'<rect{name} x="{x}" y="{y}" width="{width}" height="{_HIGH}"/>{lines}'


def _arrow(path: str) -> str:
    return f'<path d="{path}" marker-end="url(#a)"/>'


def _on() -> dict[str, set[str]]:
    return {stage.name: set(stage.on) for stage in STAGES}


def flow() -> str:
    """Return a picture of how images are built.

    The picture shows the sources and packages, the stages, arrows to each stage from the stages that it is built on
    directly, and the outputs.
    """
    where = levels(_on())
    columns = [[one for one in STAGES if where[one.name] == level] for level in range(max(where.values()) + 1)]
    high = max(len(column) for column in columns)
    step_x, step_y, top = _WIDE + _GAP, _HIGH + 24, 96
    width = step_x * len(columns) + 20
    below = top + step_y * high + 20
    parts = ['<text class="s" x="10" y="20">inputs, by digest (fetch, lock, bundle)</text>']
    places: dict[str, tuple[int, int]] = {}
    for number, column in enumerate(columns):
        x = 10 + number * step_x
        comes = sorted({name for one in column for name in one.sources})
        packages = any(one.packages for one in column)
        under = f"and {len(comes) - 2} more sources" if comes[2:] else "sources" if comes else "of the mirrors"
        parts.append(_box(x, 30, ", ".join(comes[:2]) or "packages", under if comes or packages else ""))
        parts.append(_arrow(f"M{x + _WIDE // 2} {30 + _HIGH}V{top - 2}"))
        for row, one in enumerate(column):
            y = top + row * step_y
            places[one.name] = (x, y)
            parts.append(_box(x, y, one.name, _made(one.name), kind="k"))
    for one in STAGES:
        for number, under in enumerate(_directly(one.name)):
            (from_x, from_y), (to_x, to_y) = places[under], places[one.name]
            end = to_y + _HIGH // 2 + 12 * number
            # A long arrow passes other columns between two rows, because the rows contain boxes.
            past = f"H{from_x + _WIDE + _GAP // 2}V{to_y - 8 - 4 * number}" if to_x - from_x > step_x else ""
            start = f"M{from_x + _WIDE} {from_y + _HIGH // 2}"
            parts.append(_arrow(f"{start}{past}H{to_x - _GAP // 2}V{end}H{to_x - 2}"))
    parts.append(f'<text class="s" x="10" y="{below}">outputs</text>')
    ways = (("image", "build: a layer each"), ("publish", "registry or oci:DIR"), ("SBOM", "provenance, signed"),
            ("verify", "by anybody"), ("COPY --from", "in a Dockerfile"))  # fmt: skip
    small = (width - 20 - (len(ways) - 1) * 24) // len(ways)
    for number, (text, under) in enumerate(ways):
        x = 10 + number * (small + 24)
        parts.append(_box(x, below + 10, text, under, width=small))
        if number:
            parts.append(_arrow(f"M{x - 24} {below + 10 + _HIGH // 2}H{x - 2}"))
    return _picture(width, below + _HIGH + 24, "From sources to images: the stages and what each is built on", parts)


def _directly(name: str) -> list[str]:
    """Return the stages that a stage is built on directly, those of the highest level first."""
    on = _on()
    where = levels(on)
    direct = on[name] - {low for under in on[name] for low in on[under]}
    return sorted(direct, key=lambda under: (-where[under], under))


def _made(name: str) -> str:
    words = {"base": "an operating system", "sysroot": "old glibc to link", "python": "CPythons", "llvm": "the layer",
             "triton": "wheels, an image", "kernels": "FlashAttention", "aotriton": "library, kernels"}  # fmt: skip
    return words.get(name, "")
