"""Render a report as one HTML file that contains its data, scripts and plotting library, and loads nothing else."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from html import escape
from pathlib import Path
from string import Template

from toolchain import __version__
from toolchain_lab.report.content import Report

_ASSETS = Path(__file__).with_name("assets")
# This is the unchanged file from the npm package chart.js, whose licence notices are in the same folder.
LIBRARY, LIBRARY_VERSION = "chart.umd.min.js", "4.6.1"
LIBRARY_SHA256 = "87364cc2b2a76a6684929e7d6b80b18a897794db38400caff1fcf1791c6925d2"
_SCRIPTS = ("table.js", "pictures.js", "page.js")


def html(report: Report) -> str:
    """Return a report as HTML, whose Content Security Policy only allows the scripts and the style in the page."""
    library = _asset(LIBRARY).partition("\n//# sourceMappingURL")[0]
    script = "\n".join(_asset(name) for name in _SCRIPTS)
    style = _asset("page.css")
    sections = [
        {"title": section.title, "note": section.note, "table": section.table.as_json()} for section in report.sections
    ]
    allowed = " ".join(_hash(text) for text in (library, script))
    policy = f"default-src 'none'; script-src {allowed}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    figures = [
        f'<div class="{tone.value}"><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>'
        for label, value, tone in report.figures
    ]
    # The JSON is ASCII, because names may contain characters that UTF-8 cannot encode.
    data = json.dumps({"sections": sections}, sort_keys=True, separators=(",", ":")).encode()
    return Template(_asset("page.html")).substitute(
        policy=escape(policy),
        version=escape(__version__),
        chart=LIBRARY_VERSION,
        kind=escape(report.kind),
        title=escape(report.title),
        subject=escape(report.subject),
        figures="".join(figures),
        style=style,
        # The data is compressed, because names of kernels are long and similar.
        data=base64.b64encode(gzip.compress(data, 6, mtime=0)).decode(),
        library=library,
        script=script,
    )


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
